//! Peak memory of stock Burn and of backburn, side by side.
//!
//! ```sh
//! cargo bench --bench memory
//! cargo bench --bench memory -- ViT-S      # the rows with this in their name
//! cargo bench --bench memory -- ndarray    # the rows on this backend
//! cargo bench --bench memory -- policies   # the second table
//! ```
//!
//! Every row trains three steps with Adam in f32 on the CPU (on `flex`, unless it names another backend), once with Burn's `Learner` and once
//! with `FusedOptimizer`, and prints the peak of the allocated bytes, in multiples of the bytes
//! of the parameters (P). `expected` is the lower bound of fused training: parameters, optimizer
//! state, the activations held when the backward pass starts, and the largest gradient. `balanced`
//! is fused training with Burn's `gradient_checkpointing()`, `block` with ours around every
//! block.
//!
//! The second table trains the MLP with AdamW under each gradient policy, in a loop with Burn alone and
//! in one with `FusedOptimizer`.

mod network;
mod policies;
mod products;

use backburn::FusedOptimizer;
use burn::lr_scheduler::constant::ConstantLr;
use burn::module::{ModuleVisitor, Param};
use burn::optim::AdamConfig;
use burn::prelude::*;
use burn::train::{InferenceStep, Learner, TrainStep};
use peak_alloc::PeakAlloc;

use network::vit::VitConfig;
use network::{Mlp, Network, Recurrent};
use policies::Policy;

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

const STEPS: usize = 3;
const LEARNING_RATE: f64 = 1e-4;

fn main() {
    // Cargo passes `--bench`.
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let is_chosen =
        |name: &str| chosen.is_empty() || chosen.iter().any(|part| name.contains(part.as_str()));

    #[allow(deprecated)] // Burn 0.22 still ships ndarray.
    let [flex, ndarray] = [Device::flex(), Device::ndarray()].map(Device::autodiff);
    products::multiply_on_all_threads();
    if chosen.iter().all(|part| part != "policies") {
        println!(
            "{:<24}{:>10}{:>10}{:>10}{:>8}{:>10}{:>10}{:>10}",
            "", "P (MB)", "stock/P", "fused/P", "ratio", "expected", "balanced", "block"
        );
    }
    let name = "MLP 12 x (512, 2048)";
    if is_chosen(name) {
        let init = |device: &Device, blocks| Mlp::init(device).with_recompute_blocks(blocks);
        row(init, name, [16, 512], &flex);
    }
    for (name, width, steps) in [
        ("LSTM 2 x 256, T = 64", 256, 64),
        ("LSTM 2 x 64, T = 400", 64, 400),
    ] {
        if is_chosen(name) {
            let init = |device: &Device, blocks| {
                Recurrent::of_width(width, device).with_recompute_blocks(blocks)
            };
            row(init, name, [8, steps, width], &flex);
        }
    }
    let name = "MLP, ndarray";
    if is_chosen(name) {
        let init = |device: &Device, blocks| Mlp::init(device).with_recompute_blocks(blocks);
        row(init, name, [16, 512], &ndarray);
    }
    for (name, config, batch, device) in [
        ("ViT digits, batch 64", VitConfig::digits(), 64, &flex),
        ("ViT-Ti/16, batch 1", VitConfig::vit_ti_16(), 1, &flex),
        ("ViT-Ti/16, ndarray", VitConfig::vit_ti_16(), 1, &ndarray),
        ("ViT-S/16, batch 1", VitConfig::vit_s_16(), 1, &flex),
        ("ViT-S/16, batch 8", VitConfig::vit_s_16(), 8, &flex),
        ("ViT-B/16, batch 1", VitConfig::vit_b_16(), 1, &flex),
        ("ViT-L/16, batch 1", VitConfig::vit_l_16(), 1, &flex),
    ] {
        let size = config.image_size;
        let shape = [batch, config.channels, size, size];
        if is_chosen(name) {
            let init = |device: &Device, blocks| {
                let config = config.clone().with_recompute_blocks(blocks);
                config.init(device)
            };
            row(init, name, shape, device);
        }
    }
    if is_chosen("policies") {
        policy_rows();
    }
}

/// Prints the peaks of three steps under every policy.
fn policy_rows() {
    println!(
        "\n{:<32}{:>10}{:>10}{:>8}",
        "MLP 12 x (512, 2048), AdamW", "stock/P", "fused/P", "ratio"
    );
    let device = Device::flex().autodiff();
    let input = Tensor::<2>::random([16, 512], burn::tensor::Distribution::Default, &device);
    for (policy, name) in Policy::ALL {
        let mut parameters = 0;
        let stock = peak(|| {
            let model = Mlp::init(&device);
            parameters = size_of::<f32>() * model.num_params();
            let mut step = policy.stock(model, input.clone());
            (0..STEPS).for_each(|_| step());
        });
        let fused = peak(|| {
            let mut step = policy.fused(Mlp::init(&device), input.clone());
            (0..STEPS).for_each(|_| step());
        });
        println!(
            "{name:<32}{:>10.2}{:>10.2}{:>8.2}",
            stock as f64 / parameters as f64,
            fused as f64 / parameters as f64,
            fused as f64 / stock as f64,
        );
    }
}

/// Trains both ways and prints the peaks. `init` takes `true` to recompute blocks.
fn row<const D: usize, M>(
    init: impl Fn(&Device, bool) -> M,
    name: &str,
    input: [usize; D],
    device: &Device,
) where
    M: Network<D> + TrainStep<Input = Tensor<D>> + InferenceStep,
    M: Module + std::fmt::Display + 'static,
{
    let input = Tensor::<D>::random(input, burn::tensor::Distribution::Default, device);

    let mut parameters = 0;
    let mut largest = 0;
    let stock = peak(|| {
        let model = init(device, false);
        parameters = size_of::<f32>() * model.num_params();
        largest = largest_parameter(&model);
        let optimizer = AdamConfig::new().init();
        let mut learner = Learner::new(model, optimizer, ConstantLr::new(LEARNING_RATE));
        for _ in 0..STEPS {
            let output = learner.train_step(input.clone());
            learner.lr_step();
            learner.optimizer_step(output.grads);
        }
    });

    let plain = fused(|device| init(device, false), input.clone(), device);
    let block = fused(|device| init(device, true), input.clone(), device);
    let balanced = {
        let device = device.clone().gradient_checkpointing();
        let strategy = device.gradient_checkpointing_strategy().unwrap_or_default();
        let input = input.with_gradient_checkpointing_strategy(strategy);
        fused(|device| init(device, false), input, &device)
    };

    let multiple = |bytes: usize| bytes as f64 / parameters as f64;
    println!(
        "{name:<24}{:>10.1}{:>10.2}{:>10.2}{:>8.2}{:>10.2}{:>10.2}{:>10.2}",
        parameters as f64 / 1e6,
        multiple(stock),
        multiple(plain.peak),
        plain.peak as f64 / stock as f64,
        multiple(plain.held + plain.activations + largest),
        multiple(balanced.peak),
        multiple(block.peak),
    );
}

/// Memory of fused training, in bytes.
struct Fused {
    peak: usize,
    /// Parameters and optimizer state.
    held: usize,
    /// Activations when the backward pass starts.
    activations: usize,
}

fn fused<const D: usize, M>(init: impl Fn(&Device) -> M, input: Tensor<D>, device: &Device) -> Fused
where
    M: Network<D> + Module,
{
    let before = BYTES.current_usage();
    let mut result = Fused {
        peak: 0,
        held: 0,
        activations: 0,
    };
    result.peak = peak(|| {
        let mut fused = FusedOptimizer::new(init(device), AdamConfig::new().init()).unwrap();
        for _ in 0..STEPS {
            let held = BYTES.current_usage();
            fused
                .step(LEARNING_RATE, |model| {
                    let loss = model.loss(input.clone());
                    result.activations = BYTES.current_usage() - held;
                    loss
                })
                .unwrap();
        }
        result.held = BYTES.current_usage() - before;
    });
    result
}

/// Returns the peak of the bytes during `train`, over those before.
fn peak(train: impl FnOnce()) -> usize {
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    train();
    BYTES.peak_usage() - before
}

/// Returns the bytes of the largest parameter.
fn largest_parameter<M: Module>(model: &M) -> usize {
    struct Largest(usize);

    impl ModuleVisitor for Largest {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 = self.0.max(param.shape().num_elements());
        }
    }

    let mut largest = Largest(0);
    model.visit(&mut largest);
    size_of::<f32>() * largest.0
}
