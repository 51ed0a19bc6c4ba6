//! Tests that run in their own processes.

use std::process::Command;

/// Runs `test`, the test of this name, in a process with this environment variable.
#[track_caller]
pub fn in_own_process(name: &str, (variable, value): (&str, &str), test: impl FnOnce()) {
    if std::env::var_os(variable).is_some() {
        return test();
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(variable, value)
        .status();
    assert!(status.unwrap().success(), "{name}");
}
