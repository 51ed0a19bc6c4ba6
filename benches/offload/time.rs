//! By how much a step grows with the bytes that it moves: an MLP with Adam in f32 on `ndarray`, with `flex` as its host. Both are the
//! processor, so a way is a copy in memory, but the threads are those of any device. With waiting states it is the other way round:
//! they are read while they are kept, which `ndarray` does element by element.
//!
//! The ways take turns, step by step, each in a process of its own. A ratio is the median over all rounds of what a step took in multiples
//! of the same step of the same round without offload, in blocks where it is in blocks. Beside it is that with `max_bytes_in_flight` of
//! zero: nothing comes before it is needed.

#![allow(deprecated)] // `ndarray`: Burn 0.22 still ships it.

use backburn::{
    FusedConfig, FusedOptimizer, GradientCheckpointingConfig, Offload, OffloadConfig, OffloadHost,
    OffloadedBlocks, optim::AdamConfig,
};
use burn::prelude::*;
use burn::tensor::Distribution;

use crate::network::{Mlp, Network};
use crate::turns::{self, Rounds, Way};

const DEPTH: usize = 6;
const WIDTH: usize = 256;
const BATCHES: [usize; 3] = [8, 64, 512];
const ROUNDS: usize = 31;
/// Marks a way in which nothing comes before it is needed.
const AT_ONCE: &str = " at once";

const STATES: &str = "states";
const PLAIN_ON_FLEX: &str = "plain on flex";

/// Bytes that move in a step of so many examples.
type Moved = fn(usize) -> usize;

/// Ways with what they are compared with, and the bytes that they move.
const WAYS: [(&str, &str, Moved); 4] = [
    (STATES, PLAIN_ON_FLEX, |_| 4 * parameters()),
    ("updates", "plain", |_| 2 * parameters()),
    ("weights", "in blocks", |_| 3 * parameters()),
    ("inputs", "in blocks", |batch| 2 * 4 * DEPTH * batch * WIDTH),
];

/// Bytes of the parameters.
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
        for (way, ..) in WAYS {
            names.extend([way.to_string(), format!("{way}{AT_ONCE}")]);
        }
        let size = batch.to_string();
        let ways = names.iter().map(|way| Way::start(&["time", way, &size]));
        let rounds = Rounds::of(ways.collect(), ROUNDS);
        let place = |name: &str| names.iter().position(|it| it == name).expect("it is there");
        for (way, base, moved) in WAYS {
            let base = place(base);
            let milliseconds = 1e3 * rounds.median(base);
            let megabytes = moved(batch) as f64 / 1e6;
            let ratio = |name: &str| rounds.ratio(place(name), base, 0.5);
            println!(
                "| {batch} | {milliseconds:.1} | {way} | {megabytes:.1} | {:.2} | {:.2} | {:.2} |",
                megabytes / milliseconds,
                ratio(way),
                ratio(&format!("{way}{AT_ONCE}")),
            );
        }
    }
}

/// Trains in its turns.
pub fn train(way: &str, batch: usize) {
    let limit = way.ends_with(AT_ONCE).then_some(0);
    let way = way.trim_end_matches(AT_ONCE);
    let (device, host) = match way {
        STATES | PLAIN_ON_FLEX => (Device::flex(), OffloadHost::NdArray),
        _ => (Device::ndarray(), OffloadHost::Flex),
    };
    let tracked = device.clone().autodiff();
    let inputs = way == "inputs";
    let offload = match way {
        STATES => Some(OffloadConfig::new(Offload::States)),
        "updates" => Some(OffloadConfig::new(Offload::Updates)),
        "weights" => Some(OffloadConfig::new(Offload::Weights(OffloadedBlocks::All))),
        // Nothing else leaves.
        "inputs" => Some(OffloadConfig::new(Offload::Updates).with_min_elements(usize::MAX)),
        _ => None,
    };
    let offload = offload.map(|offload| offload.with_host(host));
    let blocks = GradientCheckpointingConfig::new().with_offload_inputs(inputs);
    let in_blocks = inputs || matches!(way, "in blocks" | "weights");
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
