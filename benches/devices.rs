//! Memory by device of a model with layers on two devices: stock Burn and backburn.
//!
//! ```sh
//! cargo bench --bench devices --features wgpu,fusion
//! ```
//!
//! Every row trains the MLP of the memory benchmark for five steps with Adam in f32, its first half on one device of wgpu,
//! its second on another, in a separate process. It prints by device the peak of the bytes reserved and in use in its pools at
//! the end of a step, in multiples of the bytes of its parameters (P). With a single adapter, both devices are that adapter under
//! two names. Burn treats them as two, each with its own pools.

mod network;

use std::process::Command;

use backburn::FusedOptimizer;
use backburn::memory::match_pool_sizes;
use burn::optim::{AdamConfig, GradientsParams};
use burn::prelude::*;
use burn::tensor::{DeviceKind, Distribution};

use network::{Mlp, Network};

const STEPS: usize = 5;
const LEARNING_RATE: f64 = 1e-4;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    match arguments.as_slice() {
        [variant] => train(variant),
        _ => compare(),
    }
}

fn compare() {
    println!(
        "{:<10}{:>10}{:>14}{:>12}",
        "", "device", "reserved / P", "in use / P"
    );
    for variant in ["stock", "fused", "ours"] {
        let mut process = Command::new(std::env::current_exe().expect("a program"));
        let status = process.arg(variant).status();
        assert!(status.is_ok_and(|status| status.success()), "{variant}");
    }
}

/// The two halves of the MLP, each on its own device.
#[derive(Module, Debug)]
struct Halves {
    first: Mlp,
    second: Mlp,
}

impl Halves {
    fn init([first, second]: &[Device; 2]) -> Self {
        Self {
            first: Mlp::of_size(6, 512, first),
            second: Mlp::of_size(6, 512, second),
        }
    }

    fn loss(&self, input: Tensor<2>, second: &Device) -> Tensor<1> {
        let hidden = self.first.forward(input).to_device(second);
        self.second.loss(hidden)
    }
}

fn train(variant: &str) {
    match_pool_sizes().expect("nothing was used before");
    let device = |kind| Device::wgpu(kind).autodiff();
    let devices = [device(DeviceKind::DefaultDevice), device(DeviceKind::Cpu)];
    let input = Tensor::<2>::random([16, 512], Distribution::Default, &devices[0]);
    let model = Halves::init(&devices);
    let parameters = [4 * model.first.num_params(), 4 * model.second.num_params()];
    let second = devices[1].clone();
    let mut step: Box<dyn FnMut()> = match variant {
        "stock" => {
            let mut optimizer = AdamConfig::new().init();
            let mut model = Some(model);
            Box::new(move || {
                let current = model.take().expect("the step before has put it back");
                let gradients = current.loss(input.clone(), &second).backward();
                let gradients = GradientsParams::from_grads(gradients, &current);
                model = Some(optimizer.step(LEARNING_RATE, current, gradients));
            })
        }
        _ => {
            let optimizer = match variant {
                "ours" => backburn::optim::AdamConfig::new().init(),
                _ => AdamConfig::new().init(),
            };
            let mut fused = FusedOptimizer::new(model, optimizer).unwrap();
            Box::new(move || {
                fused
                    .step(LEARNING_RATE, |model| model.loss(input.clone(), &second))
                    .unwrap();
            })
        }
    };
    let mut most = [(0, 0); 2];
    for _ in 0..STEPS {
        step();
        for device in &devices {
            device.sync().unwrap();
        }
        for (device, (reserved, in_use)) in devices.iter().zip(&mut most) {
            let usage = device.memory_pool_usage().expect("wgpu tells");
            *reserved = usage.bytes_reserved.max(*reserved);
            *in_use = usage.bytes_in_use.max(*in_use);
        }
    }
    for (index, ((reserved, in_use), parameters)) in most.into_iter().zip(parameters).enumerate() {
        let multiple = |bytes: u64| bytes as f64 / parameters as f64;
        println!(
            "{variant:<10}{:>10}{:>14.2}{:>12.2}",
            index + 1,
            multiple(reserved),
            multiple(in_use)
        );
    }
}
