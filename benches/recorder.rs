//! Cost of the recording allocator, installed and while it records.
//!
//! ```sh
//! cargo bench --bench recorder
//! ```
//!
//! Every row trains fused with Adam in f32 on the CPU. Each round runs one step on the system's allocator, one with the
//! recording allocator installed, and one recorded, in changing order. The row has the median time of a step on the system's
//! allocator, the medians over the rounds of the others' times in multiples of it, and the allocations of a step.

mod network;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use backburn::FusedOptimizer;
use backburn::memory::{MemoryRecorder, RecordingAllocator, keep_pages};
use burn::nn::{Gelu, LinearConfig};
use burn::optim::AdamConfig;
use burn::prelude::*;
use burn::tensor::Distribution;

use network::vit::VitConfig;

#[global_allocator]
static ALLOCATOR: Switch = Switch;

static RECORDING: RecordingAllocator = RecordingAllocator::new();
static INSTALLED: AtomicBool = AtomicBool::new(true);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static COUNTED: AtomicBool = AtomicBool::new(false);

/// A switch between the recording allocator and the system's.
struct Switch;

// SAFETY: both arms hand every call on to `System`, so one may free what the other handed out.
unsafe impl GlobalAlloc for Switch {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTED.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe {
            match INSTALLED.load(Ordering::Relaxed) {
                true => RECORDING.alloc(layout),
                false => System.alloc(layout),
            }
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller got `pointer` from here with `layout`, and so from `System`.
        unsafe {
            match INSTALLED.load(Ordering::Relaxed) {
                true => RECORDING.dealloc(pointer, layout),
                false => System.dealloc(pointer, layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe {
            match INSTALLED.load(Ordering::Relaxed) {
                true => RECORDING.alloc_zeroed(layout),
                false => System.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller got `pointer` from here with `layout`, and so from `System`.
        unsafe {
            match INSTALLED.load(Ordering::Relaxed) {
                true => RECORDING.realloc(pointer, layout, size),
                false => System.realloc(pointer, layout, size),
            }
        }
    }
}

/// Allocator of a step.
#[derive(Clone, Copy, PartialEq)]
enum Variant {
    System,
    Installed,
    Recorded,
}

const VARIANTS: [Variant; 3] = [Variant::System, Variant::Installed, Variant::Recorded];

fn main() {
    keep_pages();
    println!(
        "{:<24}{:>12}{:>14}{:>12}{:>12}{:>16}",
        "", "system (ms)", "allocations", "rounds", "installed", "recorded"
    );
    let device = Device::flex().autodiff();
    let random = |shape| Tensor::<2>::random(shape, Distribution::Default, &device);

    let layers = |width: usize, depth: usize| -> Vec<_> {
        let linear = || LinearConfig::new(width, width).init(&device);
        (0..depth).map(|_| linear()).collect()
    };
    // Many allocations in a short step, and few in a long one.
    for (width, depth, rounds) in [(32, 24, 2001), (512, 12, 301)] {
        let x = random([16, width]);
        let name = format!("MLP {depth} x {width}");
        row(&name, rounds, layers(width, depth), |model| {
            let gelu = Gelu::new();
            let y = model
                .iter()
                .fold(x.clone(), |x, l| gelu.forward(l.forward(x)));
            y.powi_scalar(2).mean()
        });
    }
    let config = VitConfig::digits();
    let size = config.image_size;
    let shape = [64, config.channels, size, size];
    let images = Tensor::<4>::random(shape, Distribution::Default, &device);
    row("ViT digits, batch 64", 201, config.init(&device), |model| {
        model.forward(images.clone()).powi_scalar(2).mean()
    });
}

fn row<M: Module>(name: &str, rounds: usize, model: M, loss: impl Fn(&M) -> Tensor<1>) {
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let mut step = |variant: Variant| {
        INSTALLED.store(variant != Variant::System, Ordering::Relaxed);
        let recorder =
            (variant == Variant::Recorded).then(|| MemoryRecorder::start().expect("installed"));
        let start = Instant::now();
        fused.step(1e-3, &loss).unwrap();
        let time = start.elapsed().as_secs_f64();
        drop(recorder);
        INSTALLED.store(true, Ordering::Relaxed);
        time
    };
    for variant in VARIANTS {
        step(variant);
    }
    COUNTED.store(true, Ordering::Relaxed);
    ALLOCATIONS.store(0, Ordering::Relaxed);
    step(Variant::System);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed);
    COUNTED.store(false, Ordering::Relaxed);

    let rounds: Vec<[f64; 3]> = (0..rounds)
        .map(|round| {
            let mut times = [0.0; 3];
            for offset in 0..3 {
                let variant = (round + offset) % 3;
                times[variant] = step(VARIANTS[variant]);
            }
            times
        })
        .collect();
    let over_system = |variant: usize| median(rounds.iter().map(|times| times[variant] / times[0]));
    println!(
        "{name:<24}{:>12.2}{allocations:>14}{:>12}{:>12.3}{:>16.3}",
        1e3 * median(rounds.iter().map(|times| times[0])),
        rounds.len(),
        over_system(1),
        over_system(2),
    );
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
