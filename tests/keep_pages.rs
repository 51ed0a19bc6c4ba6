//! The heap gives its pages back until a program asks it not to.
//!
//! A process of its own: the setting counts for the whole of it, and can't be taken back.

#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod common;

use std::process::Command;

use backburn::memory::keep_pages;

use crate::common::*;

/// Bytes of buffers: so few that they come from the heap by default, and so many that each is mapped by itself.
const SMALL: usize = 100_000;
const LARGE: usize = 40_000_000;
/// Bytes of all: no more than a heap of a thread, as that of a test is, holds.
const BYTES: usize = 40_000_000;

/// Bytes of the process that are in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let kilobytes = lines.find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
    1024 * kilobytes.unwrap().trim().parse::<usize>().unwrap()
}

/// Asserts that buffers of `size` leave so many more pages with the process when they are freed, as a part of their own.
#[track_caller]
fn assert_kept(size: usize, part: f64) {
    let before = resident();
    let buffers: Vec<_> = (0..BYTES / size).map(|_| vec![1_u8; size]).collect();
    drop(std::hint::black_box(buffers));
    let kept = (resident() as f64 - before as f64) / BYTES as f64;
    assert!((kept - part).abs() < 0.2, "{kept} kept, {part} expected");
}

fn train() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(8, 8).init(&device);
    let mut fused = FusedOptimizer::new_ok(model, AdamConfig::new().init());
    let x = Tensor::<2>::ones([4, 8], &device);
    fused.step_ok(1e-3, |model| model.forward(x).mean());
}

#[test]
fn the_heap_keeps_its_pages_for_who_asks_and_for_no_fused_optimizer() {
    let nothing_is_kept = || [SMALL, LARGE].map(|size| assert_kept(size, 0.0));
    nothing_is_kept();
    train();
    nothing_is_kept();
    assert!(keep_pages());
    assert_kept(LARGE, 1.0);
    assert_kept(SMALL, 0.0); // these have used the same pages, and left them
}

#[test]
fn what_the_environment_sets_stays() {
    const NAME: &str = "MALLOC_TRIM_THRESHOLD_";
    // This test again, in a process with the setting.
    if std::env::var_os(NAME).is_none() {
        let mut again = Command::new(std::env::current_exe().unwrap());
        let again = again.args(["--exact", "what_the_environment_sets_stays"]);
        let output = again.env(NAME, "100000").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    assert!(!keep_pages());
    assert_kept(SMALL, 0.0);
}
