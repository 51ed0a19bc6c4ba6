//! Tests that run in their own processes.

use std::process::{Command, Output};

/// Runs `test`, the test of this name, in a process with this environment variable.
#[track_caller]
pub fn in_own_process(name: &str, (variable, value): (&str, &str), test: impl FnOnce()) {
    if std::env::var_os(variable).is_some() {
        return test();
    }
    run_again(name, &[(variable, value)]);
}

#[track_caller]
fn run_again(name: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert_has_passed(&output);
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

/// Runs the rest of the test in a process of its own, so that no other test changes its counters of bytes.
#[allow(unused_macros)] // Each program uses a part.
macro_rules! alone {
    () => {
        fn here() {}
        if !$crate::common::own_process::enter_own_process(std::any::type_name_of_val(&here)) {
            return;
        }
    };
}

pub(crate) use alone;

/// Returns `true` in a test's own process. Elsewhere, runs the test with the function `here` in one, and returns `false`.
#[track_caller]
pub fn enter_own_process(here: &str) -> bool {
    const ALONE: &str = "BACKBURN_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let (_, test) = here.split_once("::").unwrap();
    // A backtrace holds tens of MB.
    let variables = [(ALONE, "1"), ("RUST_BACKTRACE", "0")];
    run_again(test.strip_suffix("::here").unwrap(), &variables);
    false
}

/// Panics unless a process has run one test, which has passed. A process that finds no test of its name ends well, too.
#[track_caller]
pub fn assert_has_passed(output: &Output) {
    let [printed, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    let has_run = printed.contains("1 passed");
    assert!(output.status.success() && has_run, "{printed}{errors}");
}
