//! Tests in processes of their own.

use std::process::Command;

/// Runs `test`, that of this name, in a process that has this variable in its environment.
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
