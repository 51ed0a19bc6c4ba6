//! Tests that run in their own processes.

use std::process::Command;

/// Runs `test`, the test of this name, in a process with this environment variable.
#[track_caller]
pub fn in_own_process(name: &str, (variable, value): (&str, &str), test: impl FnOnce()) {
    if std::env::var_os(variable).is_some() {
        return test();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(variable, value)
        .output()
        .unwrap();
    let [printed, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    println!("{printed}{errors}");
    // No test of this name is a success, too.
    let has_run = printed.contains("1 passed");
    assert!(output.status.success() && has_run, "{name}");
}
