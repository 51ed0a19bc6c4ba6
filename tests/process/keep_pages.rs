//! The heap returns its pages unless the program sets otherwise. The setting applies to the whole process and can't be
//! undone.

use backburn::memory::keep_pages;

use crate::common::*;

/// Bytes of a buffer that comes from the heap by default, and of a buffer with its own mapping.
const SMALL: usize = 100_000;
const LARGE: usize = 40_000_000;
/// Bytes of all buffers: at most the size of the heap of a thread.
const BYTES: usize = 40_000_000;

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let kilobytes = lines.find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
    1024 * kilobytes.unwrap().trim().parse::<usize>().unwrap()
}

/// Asserts that freed buffers of `size` leave about this part of their pages in the process.
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
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let x = Tensor::<2>::ones([4, 8], &device);
    fused.step(1e-3, |model| model.forward(x).mean()).unwrap();
}

#[test]
fn heap_keeps_pages_if_asked_and_for_no_training() {
    let name = "keep_pages::heap_keeps_pages_if_asked_and_for_no_training";
    in_own_process(name, ("BACKBURN_TEST_PAGES", "kept"), || {
        let nothing_is_kept = || [SMALL, LARGE].map(|size| assert_kept(size, 0.0));
        nothing_is_kept();
        train();
        nothing_is_kept();
        assert!(keep_pages());
        assert_kept(LARGE, 1.0);
        assert_kept(SMALL, 0.0); // these have used the same pages, and left them
    });
}

#[test]
fn keep_pages_leaves_setting_of_environment() {
    let name = "keep_pages::keep_pages_leaves_setting_of_environment";
    in_own_process(name, ("MALLOC_TRIM_THRESHOLD_", "100000"), || {
        assert!(!keep_pages());
        assert_kept(SMALL, 0.0);
    });
}
