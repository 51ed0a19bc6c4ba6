//! Fine-tuning in stock Burn, in backburn, and in PyTorch with `transformers` and `peft`: memory, time and losses.
//!
//! ```sh
//! pip install torch transformers peft
//! cargo bench -p finetune --bench pytorch                  # all rows
//! cargo bench -p finetune --bench pytorch -- burn lora     # the rows whose names have all of these words
//! PYTHON=venv/bin/python cargo bench -p finetune --bench pytorch -- --rounds 3
//! ```
//!
//! The model has the shape of SmolLM-135M and random weights, the same in all rows; a step trains it on the same 512 tokens. The row of
//! stock Burn has Burn's loop, loss and optimizer, and the decoder of the program with the operations of `backburn-nn`. Each row
//! runs in a process of its own, `--rounds` times, one round of all rows after the other. *allocated* is the most bytes allocated at
//! once: in Burn by the whole program, in PyTorch by the tensors of a step. *resident* is the most memory of the process, and beside
//! it that beyond the program itself, which for Python are the imports. *s a step* is the median without the first step of a process.
//! The last lines compare with the training in PyTorch that does the same.

mod training;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use burn::module::{ModuleMapper, Param};
use burn::prelude::*;
use burn::tensor::{DType, Distribution};
use serde_json::json;

use finetune::config::DecoderConfig;
use finetune::decoder::Decoder;
use finetune::weights;

use training::{Numbers, ROWS, train};

const TOKENS: usize = 512;
const RATE: f64 = 1e-4;
/// Steps of a process.
const STEPS: usize = 4;
const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../benches/pytorch/finetune.py"
);

/// The rows in PyTorch, and the words for its program.
const PYTORCH: [(&str, &str); 9] = [
    ("pytorch full", "plain"),
    ("pytorch full, backward", "backward"),
    ("pytorch full, backward, chunked", "backward+chunked"),
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

/// Trainings in Burn, each with the one in PyTorch that does the same.
const PEERS: [(&str, &str); 4] = [
    ("burn full, stock", "pytorch full"),
    ("burn full, fused", "pytorch full, backward, chunked"),
    (
        "burn full, fused, blocks",
        "pytorch full, backward, checkpoint, chunked",
    ),
    (
        "burn lora, fused, blocks",
        "pytorch lora, checkpoint, chunked",
    ),
];

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
    let mut found = HashMap::new();
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
        found.insert(*name, (seconds, allocated));
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
    for (name, peer) in PEERS {
        if let (Some(ours), Some(theirs)) = (found.get(name), found.get(peer)) {
            let (time, bytes) = (ours.0 / theirs.0, ours.1 / theirs.1);
            println!(
                "{name}: {time:.2} of the seconds and {bytes:.2} of the allocated bytes of {peer}"
            );
        }
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
            command.env("MALLOC_MMAP_MAX_", "0");
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
