//! The rows in Burn, stock and fused.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use backburn::memory::{RecordingAllocator, keep_pages};
use backburn::optim::{AdamWConfig, StateFormat, WeightFormat};
use backburn::{BaseFormat, FusedConfig, FusedOptimizer, QuantizedLora};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::FloatDType;
use peak_alloc::PeakAlloc;
use serde::{Deserialize, Serialize};

use finetune::adapters::{Adapters, TARGETS};
use finetune::config::DecoderConfig;
use finetune::decoder::Decoder;
use finetune::weights;

use super::{RATE, STEPS, TOKENS};

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

/// The base and the trained part of a model.
#[derive(Clone, Copy, PartialEq)]
enum Method {
    Full,
    Lora,
    Quantized(BaseFormat),
}

/// A training in Burn.
pub struct Row {
    pub name: &'static str,
    method: Method,
    /// `false` for Burn's own loop, loss and optimizer.
    fused: bool,
    /// `true` if layers are checkpointed blocks.
    blocks: bool,
    /// `true` for bf16 weights with 8 more bits in the state, and states in 8 bits.
    few_bits: bool,
}

const FUSED: Row = Row {
    name: "burn full, fused",
    method: Method::Full,
    fused: true,
    blocks: false,
    few_bits: false,
};

pub const ROWS: [Row; 8] = [
    Row {
        name: "burn full, stock",
        fused: false,
        ..FUSED
    },
    FUSED,
    Row {
        name: "burn full, fused, blocks",
        blocks: true,
        ..FUSED
    },
    Row {
        name: "burn full, fused, blocks, bf16 and 8-bit states",
        blocks: true,
        few_bits: true,
        ..FUSED
    },
    Row {
        name: "burn lora, fused",
        method: Method::Lora,
        ..FUSED
    },
    Row {
        name: "burn lora, fused, blocks",
        method: Method::Lora,
        blocks: true,
        ..FUSED
    },
    Row {
        name: "burn lora on 8 bits, fused, blocks",
        method: Method::Quantized(BaseFormat::Bits8),
        blocks: true,
        ..FUSED
    },
    Row {
        name: "burn lora on 4 bits, fused, blocks",
        method: Method::Quantized(BaseFormat::Bits4),
        blocks: true,
        ..FUSED
    },
];

/// Numbers of a process.
#[derive(Serialize, Deserialize)]
pub struct Numbers {
    pub parameters: usize,
    pub allocated: usize,
    pub resident: usize,
    /// Resident bytes of the program before the model.
    pub imports: usize,
    pub seconds: Vec<f64>,
    pub losses: Vec<f64>,
}

fn tokens(folder: &Path, device: &Device) -> Result<[Tensor<2, Int>; 2]> {
    let bytes = std::fs::read(folder.join("tokens"))?;
    let tokens = bytes.chunks_exact(4);
    let tokens = tokens.map(|it| i32::from_le_bytes(it.try_into().expect("four bytes")));
    let tokens: Vec<i32> = tokens.collect();
    let row = |tokens: &[i32]| Tensor::<1, Int>::from_data(tokens, device).unsqueeze();
    Ok([row(&tokens[..TOKENS]), row(&tokens[1..])])
}

/// Trains, and returns the numbers of this process.
pub fn train(row: &Row, folder: &Path) -> Result<Numbers> {
    keep_pages();
    let imports = of_process("VmRSS");
    let device = Device::flex().autodiff();
    let [tokens, targets] = tokens(folder, &device)?;
    let decoder = load(row, folder, &device)?;
    let parameters = 4 * decoder.num_params();
    let (inputs, next) = (tokens.clone(), targets.clone());
    let loss = move |model: &Decoder| {
        let sum = model.sum_of_losses(inputs.clone(), next.clone());
        sum.div_scalar(TOKENS as f64)
    };
    let (seconds, losses) = if row.fused {
        let mut fused = fuse(row, decoder)?;
        steps(|| Ok(fused.step(RATE, &loss)?.into_scalar()))?
    } else {
        let config = burn::optim::AdamWConfig::new().with_epsilon(1e-8);
        let mut optimizer = config.with_weight_decay(0.01).init();
        let mut model = Some(decoder);
        steps(|| {
            let current = model.take().context("the step before has left a model")?;
            let logits = current.logits(tokens.clone()).squeeze_dim::<2>(0);
            let loss = CrossEntropyLossConfig::new().init(&device);
            let value = loss.forward(logits, targets.clone().squeeze_dim::<1>(0));
            let number = value.clone().into_scalar();
            let gradients = GradientsParams::from_grads(value.backward(), &current);
            model = Some(optimizer.step(RATE, current, gradients));
            Ok(number)
        })?
    };
    Ok(Numbers {
        parameters,
        allocated: BYTES.peak_usage(),
        resident: of_process("VmHWM"),
        imports,
        seconds,
        losses,
    })
}

fn load(row: &Row, folder: &Path, device: &Device) -> Result<Decoder> {
    device.seed(1);
    let config = DecoderConfig::read(folder)?;
    let decoder = Decoder::init(&config, row.blocks, device);
    let dtype = match row.few_bits {
        true => FloatDType::BF16,
        false => FloatDType::F32,
    };
    let adapters = Adapters {
        rank: 8,
        alpha: 16.0,
        targets: TARGETS.map(String::from).to_vec(),
    };
    let lora = adapters.lora(config.hidden);
    match row.method {
        Method::Full => weights::load(decoder, folder, dtype, None),
        Method::Lora => Ok(weights::load(decoder, folder, dtype, None)?.apply_lora(lora)),
        Method::Quantized(format) => {
            let lora = QuantizedLora::new(lora, format);
            weights::load(decoder, folder, dtype, Some(&lora))
        }
    }
}

fn fuse(row: &Row, decoder: Decoder) -> Result<FusedOptimizer<Decoder>> {
    let mut optimizer = AdamWConfig::new()
        .with_epsilon(1e-8)
        .with_weight_decay(0.01);
    if row.few_bits {
        optimizer = optimizer
            .with_state_format(StateFormat::Bits8)
            .with_weight_format(WeightFormat::Split24);
    }
    let config = FusedConfig::new().with_full_precision_accumulation(true);
    Ok(FusedOptimizer::new(decoder, optimizer.init())?.with_config(config)?)
}

/// Returns seconds and losses of the steps.
fn steps(mut step: impl FnMut() -> Result<f64>) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut seconds, mut losses) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        let begun = Instant::now();
        losses.push(step()?);
        seconds.push(begun.elapsed().as_secs_f64());
    }
    Ok((seconds, losses))
}

/// Returns the resident bytes of this process, which Linux reports under `key`.
fn of_process(key: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
    1024 * kilobytes.unwrap_or_default()
}
