//! Adapters on frozen weights in full precision or quantized: bytes at rest, peak and time of a step.
//!
//! ```sh
//! cargo bench --bench quantized            # 12 and 48 blocks
//! cargo bench --bench quantized -- 12
//! ```
//!
//! A block is two linear layers, 256 to 1,024 and back. Adam trains adapters of rank 4 on a batch of 16 with a rate of 1e-3, on `flex`. P are the
//! bytes of the dense model in f32; *at rest* are the bytes of model and optimizer after a step, and *above* is the peak over them.

#[path = "../products/mod.rs"]
mod products;

use std::time::Instant;

use backburn::{BaseFormat, FusedOptimizer, QuantizedLora, gradient_checkpointing};
use burn::module::{Lora, ParamGroup, QLora, Quantizer};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::prelude::*;
use burn::tensor::Distribution;
use burn::tensor::quantization::{Calibration, QuantValue};
use peak_alloc::PeakAlloc;

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

const WIDTH: usize = 256;
const HIDDEN: usize = 1024;
const RANK: usize = 4;
const BATCH: usize = 16;
const STEPS: usize = 4;
const RATE: f64 = 1e-3;

#[derive(Module, Debug)]
struct Block {
    inner: Linear,
    outer: Linear,
}

impl Block {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.outer.forward(self.inner.forward(x.clone()).tanh()) + x
    }
}

#[derive(Module, Debug)]
struct Stack {
    blocks: Vec<Block>,
}

impl Stack {
    fn init(count: usize, device: &Device) -> Self {
        let block = |_| Block {
            inner: LinearConfig::new(WIDTH, HIDDEN).init(device),
            outer: LinearConfig::new(HIDDEN, WIDTH).init(device),
        };
        Self {
            blocks: (0..count).map(block).collect(),
        }
    }

    fn loss(&self, x: Tensor<2>, in_blocks: bool) -> Tensor<1> {
        let run = |x, block| match in_blocks {
            true => gradient_checkpointing(block, x, Block::forward),
            false => block.forward(x),
        };
        let y = self.blocks.iter().fold(x, run);
        y.powi_scalar(2).mean()
    }
}

/// Storage of the frozen weights.
#[derive(Clone, Copy)]
enum Base {
    Full,
    Burn(QuantValue),
    Ours(BaseFormat),
}

impl Base {
    const ALL: [(Self, &str); 5] = [
        (Self::Full, "LoRA"),
        (Self::Burn(QuantValue::Q8S), "Burn's QLoRA, 8 bits"),
        (Self::Burn(QuantValue::Q4S), "Burn's QLoRA, 4 bits"),
        (Self::Ours(BaseFormat::Bits8), "QuantizedLora, 8 bits"),
        (Self::Ours(BaseFormat::Bits4), "QuantizedLora, 4 bits"),
    ];

    fn apply(self, model: Stack, device: &Device) -> Stack {
        let lora = Lora::new(RANK, 2.0 * RANK as f64);
        match self {
            Self::Full => model.apply_lora(lora),
            Self::Burn(value) => {
                let scheme = device.settings().quantization.scheme.with_value(value);
                let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
                quantizer.set_param_group(ParamGroup::from_predicate("weight"));
                model.apply_qlora(QLora::new(lora, quantizer))
            }
            Self::Ours(format) => model.apply_reparameterization(QuantizedLora::new(lora, format)),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Training {
    Stock,
    Fused,
    Blocks,
}

fn main() {
    // Cargo passes `--bench`.
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    products::multiply_on_all_threads();
    for count in [12, 48] {
        if chosen.is_empty() || chosen.contains(&count.to_string()) {
            table(count);
        }
    }
}

fn table(count: usize) {
    let device = Device::flex().autodiff();
    let dense = size_of::<f32>() * Stack::init(count, &device).num_params();
    println!(
        "\n{count} blocks, P = {:.1} MB\n{:<24}{:<8}{:>12}{:>12}{:>12}{:>12}{:>14}",
        dense as f64 / 1e6,
        "",
        "",
        "at rest (P)",
        "peak (P)",
        "above (P)",
        "s a step",
        "loss"
    );
    for (base, name) in Base::ALL {
        for (training, kind) in [
            (Training::Stock, "stock"),
            (Training::Fused, "fused"),
            (Training::Blocks, "blocks"),
        ] {
            let row = row(count, base, training, &device);
            let [rest, peak] = row.bytes.map(|bytes| bytes as f64 / dense as f64);
            println!(
                "{name:<24}{kind:<8}{rest:>12.4}{peak:>12.4}{:>12.4}{:>12.3}{:>14.8}",
                peak - rest,
                row.seconds,
                row.loss
            );
        }
    }
}

struct Row {
    /// Bytes at rest, and at the peak.
    bytes: [usize; 2],
    /// Seconds of the fastest step.
    seconds: f64,
    /// Loss of the last step.
    loss: f64,
}

fn row(count: usize, base: Base, training: Training, device: &Device) -> Row {
    device.seed(7);
    let x = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, device);
    let before = BYTES.current_usage();
    let model = base.apply(Stack::init(count, device), device);
    let mut row = Row {
        bytes: [0; 2],
        seconds: f64::INFINITY,
        loss: 0.0,
    };
    let mut measured = |step: &mut dyn FnMut() -> f64| {
        for _ in 0..STEPS {
            BYTES.reset_peak_usage();
            let start = Instant::now();
            row.loss = step();
            row.seconds = row.seconds.min(start.elapsed().as_secs_f64());
            let [rest, peak] = [BYTES.current_usage(), BYTES.peak_usage()];
            row.bytes = [rest - before, (peak - before).max(row.bytes[1])];
        }
    };
    if training == Training::Stock {
        let mut trained = Some((model, AdamConfig::new().init()));
        measured(&mut || {
            let (model, mut optimizer) = trained.take().expect("it is put back");
            let loss = model.loss(x.clone(), false);
            let value = loss.clone().into_scalar::<f64>();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            trained = Some((optimizer.step(RATE, model, gradients), optimizer));
            value
        });
    } else {
        let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
        measured(&mut || {
            let loss = fused
                .step(RATE, |model| {
                    model.loss(x.clone(), training == Training::Blocks)
                })
                .unwrap();
            loss.into_scalar::<f64>()
        });
    }
    row
}
