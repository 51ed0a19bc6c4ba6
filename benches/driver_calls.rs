//! Calls of NVIDIA's driver in a training step, counted: stock Burn and backburn.
//!
//! ```sh
//! .ci/cuda/driver-calls
//! ```
//!
//! The benchmark runs on a stub of the driver, on a machine without a GPU. Launches do nothing there, so the counts depend on
//! no result and no time. Every row trains in f32 with Adam for a few steps, and prints for the last: the kernels launched; the
//! launches of backburn's kernel, which updates a parameter; the launches in addition to a forward and backward pass alone; the
//! allocations of the memory pools; bytes copied to the device, from it and on it; and the waits of the host.
//!
//! The input is on the device before, and the loss is not read. A second table counts by stream: with offload, it shows whether
//! copies run on another stream than the kernels of the model.

mod network;

use std::path::PathBuf;

use backburn::memory::{MemoryRecorder, match_pool_sizes};
use backburn::{
    FusedConfig, FusedOptimizer, GlobalNormClippingConfig, Offload, OffloadConfig, OffloadedBlocks,
    optim as ours,
};
use burn::optim::{AdamConfig, ModuleOptimizer};
use burn::prelude::*;
use burn::tensor::Distribution;

use network::vit::VitConfig;
use network::{Mlp, Network, stock};

/// Steps until kernels are compiled and pools are filled.
const WARM_UP: usize = 4;
const LEARNING_RATE: f64 = 1e-4;
fn main() {
    let Some(file) = std::env::var_os("STANDIN_COUNTS").map(PathBuf::from) else {
        println!("counts on the stand-in for NVIDIA's driver only: see the head of this benchmark");
        return;
    };
    match_pool_sizes().expect("no device was used before");
    let counts = Counts {
        file,
        device: Device::cuda(0),
    };
    let device = counts.device.clone().autodiff();
    println!(
        "| | | launches | updates | launches for updates | allocations | to device (B) | from device (B) | \
         on device (B) | waits |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|");

    let input = Tensor::random([16, 512], Distribution::Default, &device);
    counts.print("MLP 12 x (512, 2048)", input, |recompute| {
        Mlp::init(&device).with_recompute_blocks(recompute)
    });
    let image = |config: &VitConfig, batch| {
        let shape = [batch, config.channels, config.image_size, config.image_size];
        Tensor::random(shape, Distribution::Default, &device)
    };
    for (name, batch, config) in [
        ("ViT digits, batch 64", 64, VitConfig::digits()),
        ("ViT-S/16, batch 1", 1, VitConfig::vit_s_16()),
    ] {
        counts.print(name, image(&config, batch), |recompute| {
            config
                .clone()
                .with_recompute_blocks(recompute)
                .init(&device)
        });
    }
    println!();
    counts.print_streams(&device);
}

/// Counts of the driver's stub.
struct Counts {
    file: PathBuf,
    device: Device,
}

/// Counts of one stream in one step: launches, launches of backburn's kernel, allocations, bytes copied to the device, from it
/// and on it, waits of the host, waits for another stream.
type Counted = [u64; 8];

impl Counts {
    /// Returns the counts of each stream after all submitted work has reached the driver.
    fn read(&self) -> Vec<Counted> {
        // Waits for the thread of the device, not for the driver.
        self.device.memory_pool_usage();
        let bytes = std::fs::read(&self.file).expect("the stand-in has made it");
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let numbers: Vec<u64> = bytes.chunks_exact(8).map(number).collect();
        let streams = numbers.as_chunks().0;
        assert!(streams.len() > 1, "the stand-in counts several streams");
        streams.to_vec()
    }

    /// Returns the counts of the last of several steps.
    fn of(&self, step: impl FnMut()) -> Counted {
        let streams = self.of_streams(step);
        std::array::from_fn(|index| streams.iter().map(|stream| stream[index]).sum())
    }

    fn of_streams(&self, mut step: impl FnMut()) -> Vec<Counted> {
        (0..WARM_UP).for_each(|_| step());
        let before = self.read();
        step();
        let pairs = self.read().into_iter().zip(before);
        let streams = pairs.map(|(after, before)| std::array::from_fn(|n| after[n] - before[n]));
        streams.collect()
    }

    /// Prints one row for each offload of the MLP's training: the counts of the stream with most launches, and of all others.
    fn print_streams(&self, device: &Device) {
        println!(
            "| | launches | to device (B) | from device (B) | waits of the host | waits for other streams | \
             launches, others | to device (B), others | from device (B), others | waits of the host, others |"
        );
        println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
        let input = Tensor::<2>::random([16, 512], Distribution::Default, device);
        for (name, offload) in [
            ("in blocks", None),
            ("states", Some(Offload::States)),
            ("updates", Some(Offload::Updates)),
            ("weights", Some(Offload::Weights(OffloadedBlocks::All))),
        ] {
            let model = Mlp::init(device).with_recompute_blocks(true);
            let mut fused = FusedOptimizer::new(model, ours::AdamConfig::new().init()).unwrap();
            if let Some(offload) = offload {
                fused = fused
                    .with_config_on(
                        FusedConfig::new().with_offload(Some(OffloadConfig::new(offload))),
                        device,
                    )
                    .unwrap();
            }
            let mut streams = self.of_streams(|| {
                fused
                    .step(LEARNING_RATE, |model| model.loss(input.clone()))
                    .unwrap();
            });
            streams.sort_by_key(|stream| std::cmp::Reverse(stream[0]));
            let [computing, others @ ..] = streams.as_slice() else {
                unreachable!("there is one")
            };
            let others = |index: usize| others.iter().map(|other| other[index]).sum::<u64>();
            let here = [0, 3, 4, 6, 7].map(|index| computing[index]);
            let others = [0, 3, 4, 6].map(others);
            let numbers = here
                .into_iter()
                .chain(others)
                .map(|number| number.to_string());
            println!("| {name} | {} |", numbers.collect::<Vec<_>>().join(" | "));
        }
    }

    /// Prints one row for each training of the model from `init`, with its blocks recomputed or not.
    fn print<const D: usize, N: Network<D> + Module + 'static>(
        &self,
        name: &str,
        input: Tensor<D>,
        init: impl Fn(bool) -> N,
    ) {
        let model = init(false);
        let parameters = burn::module::list_param_ids(&model).len();
        let passes = self.of(|| drop(model.loss(input.clone()).backward()));
        let print = |variant: &str, counted: Counted, one_pass: bool| {
            let [launches, updates, rest @ .., _] = counted;
            let of_updates = match one_pass {
                true => (launches as i64 - passes[0] as i64).to_string(),
                false => String::new(),
            };
            let rest = rest.map(|number| number.to_string()).join(" | ");
            println!(
                "| {name}, {parameters} parameters | {variant} | {launches} | {updates} | {of_updates} | {rest} |"
            );
        };
        print("no update", passes, false);

        let adam = AdamConfig::new().init();
        let counted = self.of(stock(model, adam, input.clone(), LEARNING_RATE));
        print("stock", counted, true);

        let ours = || ours::AdamConfig::new().init();
        let fused =
            |optimizer: ModuleOptimizer| FusedOptimizer::new(init(false), optimizer).unwrap();
        let exact = GlobalNormClippingConfig::Exact(1.0);
        let step = |fused: &mut FusedOptimizer<N>| {
            self.of(|| {
                fused
                    .step_repeatable(LEARNING_RATE, |model| model.loss(input.clone()))
                    .unwrap();
            })
        };
        print("fused", step(&mut fused(AdamConfig::new().init())), true);
        print("fused, ours", step(&mut fused(ours())), true);
        let recorder = MemoryRecorder::start_on(&self.device).expect("no other records");
        print("ours, recorded", step(&mut fused(ours())), true);
        drop(recorder);
        let mut clipping = fused(ours())
            .with_config(FusedConfig::new().with_clipping(Some(exact)))
            .unwrap();
        print("ours, exact clipping", step(&mut clipping), false);
        let mut blocks = FusedOptimizer::new(init(true), ours()).unwrap();
        print("ours, blocks", step(&mut blocks), false);
    }
}
