//! Growth of a step's time with the bytes that it transfers: an MLP with Adam in f32 on `ndarray`, with `flex` as its host.
//! Both are the processor, so a transfer is a copy in memory, but the threads are those of any device. For offloaded states the
//! direction is reversed: they are read where they are stored, which `ndarray` does element by element.
//!
//! The variants take turns, step by step, each in a separate process. A ratio is the median over all rounds of the time of a
//! step in multiples of the same step of the same round without offload, in blocks where the variant has blocks. The next
//! column has `max_bytes_in_flight` zero: no prefetching.

#![allow(deprecated)] // `ndarray`: Burn 0.22 still ships it.

use backburn::{
    FusedConfig, FusedOptimizer, GradientCheckpointingConfig, Offload, OffloadConfig, OffloadHost,
    OffloadedBlocks, optim::AdamConfig,
};
use burn::prelude::*;
use burn::tensor::Distribution;

use crate::network::{Mlp, Network};
use crate::turns::{self, Rounds, Worker};

const DEPTH: usize = 6;
const WIDTH: usize = 256;
const BATCHES: [usize; 3] = [8, 64, 512];
const ROUNDS: usize = 31;
/// Suffix of a variant without prefetching.
const AT_ONCE: &str = " at once";

const STATES: &str = "states";
const PLAIN_ON_FLEX: &str = "plain on flex";

/// Returns the bytes that a step of this number of examples transfers.
type Moved = fn(usize) -> usize;

/// Variants with their baselines, and the bytes that they transfer.
const VARIANTS: [(&str, &str, Moved); 4] = [
    (STATES, PLAIN_ON_FLEX, |_| 4 * parameters()),
    ("updates", "plain", |_| 2 * parameters()),
    ("weights", "in blocks", |_| 3 * parameters()),
    ("inputs", "in blocks", |batch| 2 * 4 * DEPTH * batch * WIDTH),
];

/// Returns the bytes of the parameters.
const fn parameters() -> usize {
    4 * DEPTH * (2 * WIDTH * 4 * WIDTH + 5 * WIDTH)
}

pub fn compare() {
    println!(
        "| batch | step without (ms) | on the host | moved (MB) | MB a ms of the step | ratio | nothing ahead |"
    );
    println!("|---:|---:|---|---:|---:|---:|---:|");
    for batch in BATCHES {
        let mut names = ["plain", PLAIN_ON_FLEX, "in blocks"]
            .map(String::from)
            .to_vec();
        for (variant, ..) in VARIANTS {
            names.extend([variant.to_string(), format!("{variant}{AT_ONCE}")]);
        }
        let size = batch.to_string();
        let workers = names
            .iter()
            .map(|variant| Worker::start(&["time", variant, &size]));
        let rounds = Rounds::of(workers.collect(), ROUNDS);
        let place = |name: &str| names.iter().position(|it| it == name).expect("it is there");
        for (variant, base, moved) in VARIANTS {
            let base = place(base);
            let milliseconds = 1e3 * rounds.median(base);
            let megabytes = moved(batch) as f64 / 1e6;
            let ratio = |name: &str| rounds.ratio(place(name), base, 0.5);
            println!(
                "| {batch} | {milliseconds:.1} | {variant} | {megabytes:.1} | {:.2} | {:.2} | {:.2} |",
                megabytes / milliseconds,
                ratio(variant),
                ratio(&format!("{variant}{AT_ONCE}")),
            );
        }
    }
}

/// Trains in the turns of the process.
pub fn train(variant: &str, batch: usize) {
    let limit = variant.ends_with(AT_ONCE).then_some(0);
    let variant = variant.trim_end_matches(AT_ONCE);
    let (device, host) = match variant {
        STATES | PLAIN_ON_FLEX => (Device::flex(), OffloadHost::NdArray),
        _ => (Device::ndarray(), OffloadHost::Flex),
    };
    let tracked = device.clone().autodiff();
    let inputs = variant == "inputs";
    let offload = match variant {
        STATES => Some(OffloadConfig::new(Offload::States)),
        "updates" => Some(OffloadConfig::new(Offload::Updates)),
        "weights" => Some(OffloadConfig::new(Offload::Weights(OffloadedBlocks::All))),
        // Nothing else is offloaded.
        "inputs" => Some(OffloadConfig::new(Offload::Updates).with_min_elements(usize::MAX)),
        _ => None,
    };
    let offload = offload.map(|offload| offload.with_host(host));
    let blocks = GradientCheckpointingConfig::new().with_offload_inputs(inputs);
    let in_blocks = inputs || matches!(variant, "in blocks" | "weights");
    let model = Mlp::of_size(DEPTH, WIDTH, &tracked).with_recompute_blocks(in_blocks);
    assert_eq!(4 * model.num_params(), parameters());
    let config = FusedConfig::new()
        .with_offload(offload)
        .with_gradient_checkpointing(blocks)
        .with_max_bytes_in_flight(limit);
    let fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let mut fused = fused.with_config_on(config, &device).unwrap();
    let input = Tensor::<2>::random([batch, WIDTH], Distribution::Default, &tracked);
    turns::train(|| fused.step(1e-4, |model| model.loss(input.clone())).unwrap())
}
