//! Tests that run in their own processes.

use std::process::{Command, Output};

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
    assert_has_passed(&output);
}

/// Panics unless a process has run one test, which has passed. A process that finds no test of its name ends well, too.
#[track_caller]
pub fn assert_has_passed(output: &Output) {
    let [printed, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    let has_run = printed.contains("1 passed");
    assert!(output.status.success() && has_run, "{printed}{errors}");
}
