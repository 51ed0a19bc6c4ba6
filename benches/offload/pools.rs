//! Memory of a device when parts of the training are offloaded to the host.
//!
//! Every row trains an MLP with Adam in f32 on wgpu for five steps, with flex as the host, in a separate process. It prints the
//! peak of the bytes in use and reserved in the device's pools from the second step on, read before every update and at the end
//! of a step, in multiples of the parameters' bytes (P) and of those of one block. Pools match sizes. Blocks are recomputed if
//! their weights are offloaded. The time of a step is in multiples of the first row's. A second table, `-- widths` alone, has
//! blocks of other sizes, and fetches one weight at a time.
//!
//! On a machine whose device is its own processor (a software Vulkan device) both sides share the same cores: they do not
//! overlap as on a GPU.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use backburn::memory::match_pool_sizes;
use backburn::{
    FusedConfig, FusedOptimizer, GradientFlow, GradientHook, HookedParameter, Offload,
    OffloadConfig, OffloadedBlocks,
};
use burn::module::ParamGroup;
use burn::optim::{AdamConfig, GradientsParams};
use burn::prelude::*;
use burn::tensor::Distribution;

use crate::network::{Mlp, Network};

const STEPS: usize = 5;
const LEARNING_RATE: f64 = 1e-4;
const BATCH: usize = 8;
/// Depth of the comparison of all variants.
const DEPTH: usize = 12;
/// Width of the residual stream in most rows; blocks are four times as wide inside.
const WIDTH: usize = 512;

/// Measures one row, for the process that prints the table.
pub fn print_row(variant: &str, depth: usize, width: usize) {
    println!("{}", measure(variant, depth, width).line());
}

pub fn compare() {
    println!(
        "| blocks | | in use (P) | reserved (P) | in use (blocks) | kept inputs (blocks) | time of a step |"
    );
    println!("|---:|---|---:|---:|---:|---:|---:|");
    let variants = [
        "stock",
        "fused",
        "states",
        "updates",
        "in blocks",
        "half",
        "weights",
    ];
    let first = row("stock", DEPTH);
    for variant in variants {
        let found = if variant == "stock" {
            first
        } else {
            row(variant, DEPTH)
        };
        print(DEPTH, variant, found, first.time);
    }
    for depth in [6, 24, 48] {
        let blocks = row("in blocks", depth);
        print(depth, "in blocks", blocks, blocks.time);
        print(depth, "weights", row("weights", depth), blocks.time);
    }
    println!();
    compare_widths();
}

/// Prints blocks of other sizes: pools reserve other amounts in addition to tensors.
pub fn compare_widths() {
    println!("| width | block (MB) | blocks | | in use (blocks) | reserved (blocks) |");
    println!("|---:|---:|---:|---|---:|---:|");
    for (width, depth) in [(512, 6), (512, 12), (1024, 6), (2048, 4)] {
        for variant in ["weights", "a weight ahead"] {
            let found = row_of(variant, depth, width);
            let block = parameters(1, width) as f64;
            println!(
                "| {width} | {:.1} | {depth} | {variant} | {:.2} | {:.2} |",
                block / 1e6,
                found.in_use / block,
                found.reserved / block
            );
        }
    }
}

fn print(depth: usize, variant: &str, found: Measured, time: f64) {
    let parameters = parameters(depth, WIDTH) as f64;
    let block = parameters / depth as f64;
    println!(
        "| {depth} | {variant} | {:.3} | {:.3} | {:.2} | {:.2} | {:.2} |",
        found.in_use / parameters,
        found.reserved / parameters,
        found.in_use / block,
        (depth * BATCH * WIDTH * 4) as f64 / block,
        found.time / time
    );
}

/// Returns the bytes of the parameters of this number of blocks.
fn parameters(depth: usize, width: usize) -> usize {
    4 * depth * (2 * width * 4 * width + 5 * width)
}

#[derive(Clone, Copy)]
struct Measured {
    in_use: f64,
    reserved: f64,
    time: f64,
}

impl Measured {
    fn line(self) -> String {
        format!("{} {} {}", self.in_use, self.reserved, self.time)
    }
}

/// Measures a row in a separate process.
fn row(variant: &str, depth: usize) -> Measured {
    row_of(variant, depth, WIDTH)
}

fn row_of(variant: &str, depth: usize, width: usize) -> Measured {
    let mut process = Command::new(std::env::current_exe().expect("a program"));
    let output = process
        .args([variant, &depth.to_string(), &width.to_string()])
        .output();
    let output = output.expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
    match numbers.as_slice() {
        [in_use, reserved, time] if output.status.success() => Measured {
            in_use: *in_use,
            reserved: *reserved,
            time: *time,
        },
        _ => panic!(
            "{variant}, {depth} blocks: {}",
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

fn measure(variant: &str, depth: usize, width: usize) -> Measured {
    match_pool_sizes().expect("nothing was used before");
    let device = Device::wgpu(Default::default());
    let tracked = device.clone().autodiff();
    let input = Tensor::<2>::random([BATCH, width], Distribution::Default, &tracked);
    let peaks = Peaks::of(&device);
    let offload = match variant {
        "states" => Some(Offload::States),
        "updates" => Some(Offload::Updates),
        "half" => Some(Offload::Weights(OffloadedBlocks::Fraction(0.5))),
        "weights" | "a weight ahead" => Some(Offload::Weights(OffloadedBlocks::All)),
        _ => None,
    };
    let in_blocks = matches!(variant, "in blocks" | "half" | "weights" | "a weight ahead");
    let limit = (variant == "a weight ahead").then_some(4 * width * 4 * width);
    // Offloaded data are created on the host.
    let home = match offload {
        None | Some(Offload::States) => tracked,
        _ => Device::flex().autodiff(),
    };
    let model = Mlp::of_size(depth, width, &home).with_recompute_blocks(in_blocks);
    assert_eq!(4 * model.num_params(), parameters(depth, width));
    let mut step: Box<dyn FnMut()> = match variant {
        "stock" => stock(model, input, peaks.clone()),
        _ => fused(model, offload, limit, input, peaks.clone()),
    };
    step();
    device.sync().expect("it computes");
    peaks.forget();
    let mut times = Vec::new();
    for _ in 1..STEPS {
        let started = Instant::now();
        step();
        device.sync().expect("it computes");
        times.push(started.elapsed());
        peaks.look();
    }
    times.sort();
    let time: Duration = times[times.len() / 2];
    Measured {
        in_use: peaks.in_use.load(Ordering::Relaxed) as f64,
        reserved: peaks.reserved.load(Ordering::Relaxed) as f64,
        time: time.as_secs_f64(),
    }
}

fn stock(model: Mlp, input: Tensor<2>, peaks: Peaks) -> Box<dyn FnMut()> {
    let mut optimizer = AdamConfig::new().init();
    let mut model = Some(model);
    Box::new(move || {
        let current = model.take().expect("the step before has put it back");
        let gradients = current.loss(input.clone()).backward();
        let gradients = GradientsParams::from_grads(gradients, &current);
        peaks.look();
        model = Some(optimizer.step(LEARNING_RATE, current, gradients));
    })
}

fn fused(
    model: Mlp,
    offload: Option<Offload>,
    limit: Option<usize>,
    input: Tensor<2>,
    peaks: Peaks,
) -> Box<dyn FnMut()> {
    let device = input.device();
    let optimizer = backburn::optim::AdamConfig::new().init();
    let fused = FusedOptimizer::new(model, optimizer)
        .unwrap()
        .with_hook(ParamGroup::all(), peaks);
    let mut fused = match offload {
        None => fused,
        Some(offload) => fused
            .with_config_on(
                FusedConfig::new()
                    .with_offload(Some(OffloadConfig::new(offload)))
                    .with_max_bytes_in_flight(limit),
                &device,
            )
            .unwrap(),
    };
    Box::new(move || {
        fused
            .step(LEARNING_RATE, |model| model.loss(input.clone()))
            .unwrap();
    })
}

/// Peaks of the bytes in use and reserved on a device, over all readings.
#[derive(Clone)]
struct Peaks {
    device: Device,
    in_use: Arc<AtomicUsize>,
    reserved: Arc<AtomicUsize>,
}

impl Peaks {
    fn of(device: &Device) -> Self {
        Self {
            device: device.clone(),
            in_use: Arc::default(),
            reserved: Arc::default(),
        }
    }

    fn look(&self) {
        let usage = self.device.memory_pool_usage().expect("wgpu tells");
        let in_use = usage.bytes_in_use as usize;
        self.in_use.fetch_max(in_use, Ordering::Relaxed);
        let reserved = usage.bytes_reserved as usize;
        self.reserved.fetch_max(reserved, Ordering::Relaxed);
    }

    fn forget(&self) {
        self.in_use.store(0, Ordering::Relaxed);
        self.reserved.store(0, Ordering::Relaxed);
    }
}

impl GradientHook for Peaks {
    fn call<const D: usize>(
        &self,
        _parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        self.look();
        GradientFlow::Continue(gradient)
    }
}
