//! Memory and time of training on a GPU: stock Burn, backburn and PyTorch, in one run.
//!
//! ```sh
//! cargo bench --bench gpu --features cuda,fusion
//! cargo bench --bench gpu --features wgpu,fusion -- --device wgpu --models mlp
//! ```
//!
//! The benchmark prints two tables in Markdown. The first trains in f32 with Adam, each variant in a separate process with five
//! warm-up steps and fifteen more. It has the peak of the bytes in use and reserved in the memory pools at the end of a step,
//! in multiples of the parameters' bytes (P), and the median time of a step, including a wait for the device. PyTorch is
//! measured too if `python3` has it (`benches/pytorch/training.py`). It reports the peak over all moments, and Burn's pools the
//! peak over the ends of steps. For reserved bytes, which are not released, both are the same.
//!
//! The second table steps one large parameter with every optimizer of [`backburn::optim`]: bytes moved per second, absolute and
//! relative to a copy on the device in the same rounds. Some optimizers have states, and a weight, in formats.

mod network;

use std::process::Command;
use std::time::Instant;

use backburn::memory::match_pool_sizes;
use backburn::{FusedOptimizer, check_device, optim as ours};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, ModuleOptimizer, Optimizer};
use burn::prelude::*;
use burn::tensor::{DType, Distribution, FloatDType};
use clap::Parser;

use network::vit::VitConfig;
use network::{Mlp, Network, stock};

const WARM_UP: usize = 5;
const STEPS: usize = 15;
const LEARNING_RATE: f64 = 1e-4;
const MODELS: [&str; 3] = ["mlp", "vit-s-16", "vit-l-16"];
const VARIANTS: [&str; 5] = [
    "stock",
    "stock-default-pools",
    "fused",
    "ours",
    "ours-blocks",
];
const PYTORCH: [&str; 4] = ["adam", "loop", "fused", "hook"];

/// Memory and time of training on a GPU.
#[derive(Parser)]
struct Options {
    /// The backend: cuda, rocm, wgpu or cpu, if it is built.
    #[arg(long, default_value = "cuda")]
    device: String,

    /// Models: mlp, vit-s-16 and vit-l-16.
    #[arg(long, value_delimiter = ',', default_values_t = MODELS.map(String::from))]
    models: Vec<String>,

    /// Elements of the parameter in the second table.
    #[arg(long, default_value_t = 100_000_000)]
    elements: usize,

    /// Train only this model and variant, in this process.
    #[arg(long, num_args = 2, value_names = ["MODEL", "WAY"])]
    only: Option<Vec<String>>,

    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn device(&self) -> Device {
        match self.device.as_str() {
            #[cfg(feature = "cuda")]
            "cuda" => Device::cuda(0),
            #[cfg(feature = "rocm")]
            "rocm" => Device::rocm(0),
            #[cfg(feature = "wgpu")]
            "wgpu" => Device::wgpu(Default::default()),
            #[cfg(feature = "cpu")]
            "cpu" => Device::cpu(),
            other => panic!("the benchmark is not built for `{other}`"),
        }
    }
}

fn main() {
    let options = Options::parse();
    if let Some([model, variant]) = options.only.as_deref() {
        if variant != "stock-default-pools" {
            match_pool_sizes().expect("no device was used before");
        }
        let device = options.device();
        check_device(&device, FloatDType::F32).unwrap_or_else(|error| panic!("{error}"));
        return measure(model, variant, &device.autodiff());
    }
    println!("| model | | in use / P | reserved / P | step (ms) |");
    println!("|---|---|---:|---:|---:|");
    for model in &options.models {
        for variant in VARIANTS {
            let this = std::env::current_exe().expect("a program");
            let arguments = ["--device", &options.device, "--only", model, variant];
            print_row(model, variant, Command::new(this).args(arguments));
        }
        for variant in PYTORCH {
            let arguments = [
                "benches/pytorch/training.py",
                model,
                variant,
                &options.device,
            ];
            print_row(
                model,
                &format!("PyTorch, {variant}"),
                Command::new("python3").args(arguments),
            );
        }
    }
    println!(
        "\n| {} elements | B/element | GB/s | of a copy |",
        options.elements
    );
    println!("|---|---:|---:|---:|");
    Bandwidth::new(&options.device(), options.elements).print();
}

/// Prints a row from the output of the process: bytes of the parameters, in use, reserved, milliseconds.
fn print_row(model: &str, variant: &str, process: &mut Command) {
    let output = process.output();
    let output = output
        .as_ref()
        .map(|output| String::from_utf8_lossy(&output.stdout));
    let output = output.unwrap_or_default();
    let line = output.lines().last().unwrap_or_default();
    let numbers: Vec<f64> = line.split(' ').filter_map(|n| n.parse().ok()).collect();
    match numbers[..] {
        [parameters, in_use, reserved, milliseconds] => println!(
            "| {model} | {variant} | {:.2} | {:.2} | {milliseconds:.2} |",
            in_use / parameters,
            reserved / parameters
        ),
        _ => println!("| {model} | {variant} | did not run | | |"),
    }
}

/// Trains one variant, and prints the input of [`print_row`].
fn measure(model: &str, variant: &str, device: &Device) {
    let image = |batch: usize| Tensor::random([batch, 3, 224, 224], Distribution::Default, device);
    let blocks = variant == "ours-blocks";
    match model {
        "mlp" => {
            let input = Tensor::random([16, 512], Distribution::Default, device);
            train(
                Mlp::init(device).with_recompute_blocks(blocks),
                variant,
                input,
            );
        }
        "vit-s-16" => {
            let config = VitConfig::vit_s_16().with_recompute_blocks(blocks);
            train(config.init(device), variant, image(8));
        }
        "vit-l-16" => {
            let config = VitConfig::vit_l_16().with_recompute_blocks(blocks);
            train(config.init(device), variant, image(1));
        }
        other => panic!("there is no model `{other}`"),
    }
}

fn train<const D: usize, N: Network<D> + Module + 'static>(
    model: N,
    variant: &str,
    input: Tensor<D>,
) {
    let device = input.device().inner();
    let parameters = 4 * model.num_params();
    let fused = |model: N, optimizer: ModuleOptimizer| {
        let mut fused = FusedOptimizer::new(model, optimizer).unwrap();
        let input = input.clone();
        Box::new(move || {
            drop(
                fused
                    .step(LEARNING_RATE, |model| model.loss(input.clone()))
                    .unwrap(),
            )
        }) as Box<dyn FnMut()>
    };
    let mut step = match variant {
        "fused" => fused(model, AdamConfig::new().init()),
        "ours" | "ours-blocks" => fused(model, ours::AdamConfig::new().init()),
        _ => stock(
            model,
            AdamConfig::new().init(),
            input.clone(),
            LEARNING_RATE,
        ),
    };
    let mut times = Vec::new();
    let (mut in_use, mut reserved) = (0, 0);
    for index in 0..WARM_UP + STEPS {
        let started = Instant::now();
        step();
        device.sync().expect("the device goes on");
        if index >= WARM_UP {
            times.push(started.elapsed().as_secs_f64());
        }
        let usage = device.memory_pool_usage().expect("CubeCL tells");
        in_use = in_use.max(usage.bytes_in_use);
        reserved = reserved.max(usage.bytes_reserved);
    }
    println!("{parameters} {in_use} {reserved} {}", 1e3 * median(times));
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The second table.
struct Bandwidth {
    device: Device,
    elements: usize,
    /// Bytes per second of a copy.
    copy: f64,
}

impl Bandwidth {
    fn new(device: &Device, elements: usize) -> Self {
        let mut source = Some(Tensor::<1>::ones([elements], device));
        // An addition of a scalar reads and writes every element once. `fusion` does not compute a result that is dropped.
        let seconds = timed(device, || {
            source = source.take().map(|it| it.add_scalar(1.0))
        });
        Self {
            device: device.clone(),
            elements,
            copy: 8.0 * elements as f64 / seconds,
        }
    }

    fn print(&self) {
        let momentum = Some(MomentumConfig::new());
        self.row("AdamW", 28.0, ours::AdamWConfig::new().build());
        self.row(
            "AdamW, AMSGrad",
            36.0,
            ours::AdamWConfig::new().with_amsgrad(true).build(),
        );
        self.row("Adam", 28.0, ours::AdamConfig::new().build());
        self.row(
            "SGD, momentum",
            20.0,
            ours::SgdConfig::new().with_momentum(momentum).build(),
        );
        self.row("SGD", 12.0, ours::SgdConfig::new().build());
        self.row("Lion", 20.0, ours::LionConfig::new().build());
        // With a scale in f32 for every 64 elements, and a checksum for their residual.
        for (name, states, bytes) in [
            ("AdamW, 8-bit states", ours::StateFormat::Bits8, 16.25),
            ("AdamW, 4-bit states", ours::StateFormat::Bits4, 14.25),
        ] {
            let config = ours::AdamWConfig::new().with_state_format(states);
            self.row(name, bytes, config.build());
        }
        if self.device.supports_dtype(FloatDType::BF16) {
            let config = ours::AdamWConfig::new()
                .with_state_format(ours::StateFormat::Bits8)
                .with_weight_format(ours::WeightFormat::Split24);
            let name = "AdamW, bf16 + 8 bits, 8-bit states";
            self.row_in(FloatDType::BF16, name, 12.375, config.build());
        }
    }

    fn row(&self, name: &str, bytes: f64, optimizer: impl Optimizer) {
        self.row_in(FloatDType::F32, name, bytes, optimizer);
    }

    /// Prints a row. A step moves `bytes` for each element.
    fn row_in(&self, dtype: FloatDType, name: &str, bytes: f64, optimizer: impl Optimizer) {
        let gradient = Tensor::<1>::ones([self.elements], (&self.device, DType::from(dtype)));
        let mut state = Some((gradient.clone().mul_scalar(0.5), None));
        let seconds = timed(&self.device, || {
            let (parameter, moments) = state.take().expect("the step before has put it back");
            state = Some(optimizer.step(LEARNING_RATE, parameter, gradient.clone(), moments));
        });
        let moved = bytes * self.elements as f64 / seconds;
        println!(
            "| {name} | {bytes} | {:.0} | {:.2} |",
            moved / 1e9,
            moved / self.copy
        );
    }
}

/// Returns the median seconds of `work` on the device.
fn timed(device: &Device, mut work: impl FnMut()) -> f64 {
    let mut once = || {
        let started = Instant::now();
        work();
        device.sync().expect("the device goes on");
        started.elapsed().as_secs_f64()
    };
    for _ in 0..WARM_UP {
        once();
    }
    median((0..STEPS).map(|_| once()).collect())
}
