//! The heap gives its pages back until a program asks it not to.
//!
//! A process of its own: the setting counts for the whole of it, and can't be taken back.

#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::process::Command;

use backburn::FusedOptimizer;
use backburn::memory::keep_pages;
use burn::nn::LinearConfig;
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor};

/// Bytes of a buffer: so few that it comes from the heap by default.
const BUFFER: usize = 100_000;
const BUFFERS: usize = 400;

/// Bytes of the process that are in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let kilobytes = lines.find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
    1024 * kilobytes.unwrap().trim().parse::<usize>().unwrap()
}

/// Asserts that many buffers leave this part of their pages with the process when they are freed.
#[track_caller]
fn assert_kept(part: f64) {
    let before = resident();
    let buffers: Vec<_> = (0..BUFFERS).map(|_| vec![1_u8; BUFFER]).collect();
    drop(std::hint::black_box(buffers));
    let kept = resident().saturating_sub(before) as f64 / (BUFFERS * BUFFER) as f64;
    assert!((kept - part).abs() < 0.2, "{kept} kept, {part} expected");
}

fn train() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(8, 8).init(&device);
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init());
    let x = Tensor::<2>::ones([4, 8], &device);
    fused.step(1e-3, |model| model.forward(x).mean());
}

#[test]
fn the_heap_keeps_its_pages_for_who_asks_and_for_no_fused_optimizer() {
    assert_kept(0.0);
    train();
    assert_kept(0.0);
    assert!(keep_pages());
    assert_kept(1.0);
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
    assert_kept(0.0);
}
