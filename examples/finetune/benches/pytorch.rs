//! Fine-tuning in stock Burn, in backburn, and in PyTorch with `transformers` and `peft`: memory, time and losses.
//!
//! ```sh
//! pip install torch transformers peft
//! cargo bench -p finetune --bench pytorch                  # all rows
//! cargo bench -p finetune --bench pytorch -- burn lora     # the rows whose names have all of these words
//! PYTHON=venv/bin/python cargo bench -p finetune --bench pytorch -- --rounds 3
//! ```
//!
//! The model has the shape of SmolLM-135M and random weights, the same in all rows; a step trains it on the same 512 tokens. Each row
//! runs in a process of its own, `--rounds` times, one round of all rows after the other. *allocated* is the most bytes allocated at
//! once: in Burn by the whole program, in PyTorch by the tensors of a step. *resident* is the most memory of the process, and beside
//! it that beyond the program itself, which for Python are the imports. *s a step* is the median without the first step of a process.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use backburn::memory::{RecordingAllocator, keep_pages};
use backburn::optim::{AdamWConfig, StateFormat, WeightFormat};
use backburn::{BaseFormat, FusedConfig, FusedOptimizer, QuantizedLora};
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::{DType, Distribution, FloatDType};
use peak_alloc::PeakAlloc;
use serde::{Deserialize, Serialize};
use serde_json::json;

use finetune::adapters::{Adapters, TARGETS};
use finetune::config::DecoderConfig;
use finetune::decoder::Decoder;
use finetune::weights;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

const TOKENS: usize = 512;
const RATE: f64 = 1e-4;
/// Steps of a process.
const STEPS: usize = 4;
const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../benches/pytorch/finetune.py"
);

/// The rows in PyTorch, and the words for its program.
const PYTORCH: [(&str, &str); 8] = [
    ("pytorch full", "plain"),
    ("pytorch full, backward", "backward"),
    ("pytorch full, backward, checkpoint", "backward+checkpoint"),
    (
        "pytorch full, backward, checkpoint, chunked",
        "backward+checkpoint+chunked",
    ),
    ("pytorch full, bf16", "bf16"),
    ("pytorch lora", "lora"),
    ("pytorch lora, checkpoint", "lora+checkpoint"),
    (
        "pytorch lora, checkpoint, chunked",
        "lora+checkpoint+chunked",
    ),
];

/// The base and the trained part of a model.
#[derive(Clone, Copy, PartialEq)]
enum Method {
    Full,
    Lora,
    Quantized(BaseFormat),
}

/// A training in Burn.
struct Row {
    name: &'static str,
    method: Method,
    /// `false` for Burn's own loop and optimizer.
    fused: bool,
    /// `true` if layers and chunks of the loss are checkpointed blocks.
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

const ROWS: [Row; 8] = [
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
struct Numbers {
    parameters: usize,
    allocated: usize,
    resident: usize,
    /// Resident bytes of the program before the model.
    imports: usize,
    seconds: Vec<f64>,
    losses: Vec<f64>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.retain(|argument| *argument != "--bench");
    if let ["row", name, folder] = arguments[..] {
        let row = ROWS.iter().find(|row| row.name == name);
        let numbers = train(row.context("no row has this name")?, Path::new(folder))?;
        println!("{}", serde_json::to_string(&numbers)?);
        return Ok(());
    }
    let mut rounds = 1;
    if let Some(index) = arguments.iter().position(|it| *it == "--rounds") {
        let number = arguments
            .get(index + 1)
            .context("`--rounds` has no number")?;
        rounds = number.parse()?;
        arguments.drain(index..index + 2);
    }
    table(rounds, &arguments)
}

/// Prints a row for each training whose name has all `words`.
fn table(rounds: usize, words: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_model(folder.path())?;
    let names = PYTORCH.iter().map(|(name, _)| *name);
    let names = names.chain(ROWS.iter().map(|row| row.name));
    let names: Vec<&str> = names
        .filter(|name| words.iter().all(|word| name.contains(word)))
        .collect();
    let mut results: Vec<Vec<Result<Numbers>>> = names.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (name, results) in names.iter().zip(&mut results) {
            eprintln!("{name}");
            results.push(numbers(name, folder.path()));
        }
    }
    println!(
        "{:<50}{:>12}{:>12}{:>12}{:>10}{:>10}{:>10}{:>10}  losses",
        "", "allocated", "resident", "beyond", "of first", "s a step", "of first", "tokens/s"
    );
    let mut first = None;
    for (name, results) in names.iter().zip(results) {
        let results: Result<Vec<Numbers>> = results.into_iter().collect();
        let results = match results {
            Ok(results) => results,
            Err(error) => {
                println!("{name:<50}did not run: {error:#}");
                continue;
            }
        };
        let median = |number: fn(&Numbers) -> f64| median(results.iter().map(number).collect());
        let seconds = results.iter().flat_map(|it| it.seconds[1..].to_vec());
        let seconds = self::median(seconds.collect());
        let [allocated, resident, imports] = [
            median(|it| it.allocated as f64),
            median(|it| it.resident as f64),
            median(|it| it.imports as f64),
        ];
        let beyond = resident - imports;
        let (first_beyond, first_seconds) = *first.get_or_insert((beyond, seconds));
        let losses = &results[0].losses;
        println!(
            "{name:<50}{:>9.0} MB{:>9.0} MB{:>9.0} MB{:>10.2}{seconds:>10.2}{:>10.2}{:>10.0}  {:.4} -> {:.4}",
            allocated / 1e6,
            resident / 1e6,
            beyond / 1e6,
            beyond / first_beyond,
            seconds / first_seconds,
            TOKENS as f64 / seconds,
            losses[0],
            losses[losses.len() - 1],
        );
    }
    Ok(())
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Returns this program with these arguments.
fn this(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command.args(arguments);
    command
}

/// Returns the numbers of a row, from a process of its own.
fn numbers(name: &str, folder: &Path) -> Result<Numbers> {
    let path = folder.to_str().context("a path that is no text")?;
    let mut command = match PYTORCH.iter().find(|(row, _)| *row == name) {
        None => this(&["row", name, path]),
        Some((_, way)) => {
            let python = std::env::var("PYTHON").unwrap_or("python3".to_string());
            let mut command = Command::new(python);
            command.args([PROGRAM, way, path, &STEPS.to_string()]);
            // A heap that keeps its pages as Burn's does.
            command.env("MALLOC_TRIM_THRESHOLD_", "1000000000000");
            command.env("MALLOC_MMAP_THRESHOLD_", "33554432");
            command.env("MALLOC_ARENA_MAX", "1");
            command
        }
    };
    let output = command.output().context("the program can't be started")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().last().unwrap_or("no message").to_string();
    ensure!(output.status.success(), last);
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().last().context("no line")?;
    Ok(serde_json::from_str(line)?)
}

/// Writes a model of SmolLM-135M's shape with random weights, and a row of tokens.
fn write_model(folder: &Path) -> Result<()> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": true,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "dtype": "float32",
        "torch_dtype": "float32",
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let config = DecoderConfig::read(folder)?;
    let device = Device::flex();
    device.seed(1);
    let decoder = Decoder::init(&config, false, &device).map(&mut Random);
    weights::save(&decoder, &folder.join(weights::WEIGHTS), DType::F32)?;
    // A text is less uniform, so there is something to learn.
    let token = |index: usize| (index * index * 31 + index / 7) % 997 * 49;
    let tokens = (0..=TOKENS).flat_map(|index| (token(index) as i32).to_le_bytes());
    std::fs::write(folder.join("tokens"), tokens.collect::<Vec<u8>>())?;
    Ok(())
}

/// Draws matrices from a normal distribution, as `transformers` initializes them.
struct Random;

impl ModuleMapper for Random {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match D {
            2 => param.map(|value| value.random_like(Distribution::Normal(0.0, 0.02))),
            _ => param,
        }
    }
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
fn train(row: &Row, folder: &Path) -> Result<Numbers> {
    keep_pages();
    let imports = of_process("VmRSS");
    let device = Device::flex().autodiff();
    let [tokens, targets] = tokens(folder, &device)?;
    let decoder = load(row, folder, &device)?;
    let parameters = 4 * decoder.num_params();
    let blocks = row.blocks;
    let loss = move |model: &Decoder| {
        let (tokens, targets) = (tokens.clone(), targets.clone());
        if blocks {
            return model
                .sum_of_losses(tokens, targets)
                .div_scalar(TOKENS as f64);
        }
        let logits = model.logits(tokens).squeeze_dim::<2>(0);
        let loss = CrossEntropyLossConfig::new().init(&logits.device());
        loss.forward(logits, targets.squeeze_dim::<1>(0))
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
            let value = loss(&current);
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
