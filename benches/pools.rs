//! Memory that a GPU's pools reserve in training: stock Burn and backburn, by setting of the pools.
//!
//! ```sh
//! cargo bench --bench pools --features wgpu,fusion
//! ```
//!
//! Every row trains the MLP of the memory benchmark for five steps with Adam in f32 on wgpu, in a
//! process of its own, and prints the most bytes that the device's pools had reserved and had in use at
//! the end of a step, in multiples of the parameters' bytes (P).
//!
//! Fused training is also tried with a flush before every update (`flush`), with waiting for the device
//! (`sync`), and with weights and optimizer states in CubeCL's persistent allocations (`persistent`).

mod network;

use std::process::Command;

use backburn::memory::match_pool_sizes;
use backburn::{FusedOptimizer, GradientFlow, GradientHook, HookedParameter};
use burn::module::ParamGroup;
use burn::optim::{AdamConfig, LearningRate, Optimizer};
use burn::prelude::*;
use burn::tensor::Distribution;

use network::{Mlp, Network, stock};

const STEPS: usize = 5;
const LEARNING_RATE: f64 = 1e-4;
const VARIANTS: [&str; 6] = ["stock", "fused", "ours", "flush", "sync", "persistent"];

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    match arguments.as_slice() {
        [pools, variant] => train(pools, variant),
        _ => compare(),
    }
}

fn compare() {
    println!(
        "{:<14}{:<16}{:>14}{:>12}",
        "pools", "", "reserved / P", "in use / P"
    );
    for pools in ["default", "size-match"] {
        for variant in VARIANTS {
            let mut process = Command::new(std::env::current_exe().expect("a program"));
            let status = process.args([pools, variant]).status();
            assert!(
                status.is_ok_and(|status| status.success()),
                "{pools} {variant}"
            );
        }
    }
}

fn train(pools: &str, variant: &str) {
    if pools == "size-match" {
        match_pool_sizes().expect("nothing was used before");
    }
    let device = Device::wgpu(Default::default()).autodiff();
    let inner = device.clone().inner();
    let input = Tensor::<2>::random([16, 512], Distribution::Default, &device);
    let model = match variant {
        "persistent" => device.memory_persistent_allocations((), |()| Mlp::init(&device)),
        _ => Mlp::init(&device),
    };
    let parameters = 4 * model.num_params();
    let adam = AdamConfig::new();
    let mut step: Box<dyn FnMut()> = if variant == "stock" {
        stock(model, adam.init(), input, LEARNING_RATE)
    } else {
        let optimizer = match variant {
            "ours" => backburn::optim::AdamConfig::new().init(),
            "persistent" => Persistent(adam.build()).into(),
            _ => adam.init(),
        };
        let fused = FusedOptimizer::new(model, optimizer).unwrap();
        let before = |act: fn(&Device)| Before { device: inner, act };
        let all = ParamGroup::all();
        let fused = match variant {
            "flush" => fused.with_hook(all, before(|device| device.flush().unwrap())),
            "sync" => fused.with_hook(all, before(|device| device.sync().unwrap())),
            _ => fused,
        };
        steps(fused, input)
    };
    let (mut reserved, mut in_use) = (0, 0);
    for _ in 0..STEPS {
        step();
        device.sync().unwrap();
        let usage = device.memory_pool_usage().expect("wgpu tells");
        reserved = reserved.max(usage.bytes_reserved as usize);
        in_use = in_use.max(usage.bytes_in_use as usize);
    }
    let multiple = |bytes: usize| bytes as f64 / parameters as f64;
    println!(
        "{pools:<14}{variant:<16}{:>14.2}{:>12.2}",
        multiple(reserved),
        multiple(in_use)
    );
}

fn steps(mut fused: FusedOptimizer<Mlp>, input: Tensor<2>) -> Box<dyn FnMut()> {
    Box::new(move || {
        fused
            .step(LEARNING_RATE, |model| model.loss(input.clone()))
            .unwrap();
    })
}

/// A hook that runs before every update.
struct Before {
    device: Device,
    act: fn(&Device),
}

impl GradientHook for Before {
    fn call<const D: usize>(
        &self,
        _parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        (self.act)(&self.device);
        GradientFlow::Continue(gradient)
    }
}

/// An optimizer that creates its states in persistent allocations.
#[derive(Clone)]
struct Persistent<O>(O);

impl<O: Optimizer> Optimizer for Persistent<O> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        if state.is_some() {
            return self.0.step(lr, parameter, gradient, state);
        }
        let device = parameter.device();
        let first = |(parameter, gradient)| self.0.step(lr, parameter, gradient, None);
        device.memory_persistent_allocations((parameter, gradient), first)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        O::to_device(state, device)
    }
}
