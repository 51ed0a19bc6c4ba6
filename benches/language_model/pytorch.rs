//! Comparison of a network in Burn and in PyTorch, with the same weights and text.

use std::path::Path;
use std::process::Command;

use backburn::memory::keep_pages;
use burn::config::Config;
use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;

use crate::model::{LanguageModelConfig, Preset};
use crate::training::{steps, text};
use crate::turns::{self, Rounds, Worker as Turns};
use crate::variant::{BLOCKS, CHUNKED, FUSED, STOCK, Variant};
use crate::{BYTES, printed};

const SINGLE_PASS: Variant = Variant {
    name: "single-pass",
    single_pass: true,
    ..FUSED
};
const VARIANTS: [Variant; 5] = [
    STOCK,
    FUSED,
    SINGLE_PASS,
    Variant {
        name: "single-pass-blocks",
        single_pass: true,
        ..BLOCKS
    },
    Variant {
        name: "single-pass-chunked",
        single_pass: true,
        ..CHUNKED
    },
];
const PYTORCH: [&str; 6] = [
    "plain",
    "fused",
    "hook",
    "hook+fused",
    "hook+fused+checkpoint",
    "hook+fused+checkpoint+chunked",
];
const PROGRAM: &str = "benches/pytorch/language_model.py";
/// Number of steps whose losses and bytes are reported; in PyTorch, too.
const STEPS: usize = 3;
const ROUNDS: usize = 5;

/// Returns a network that is small enough for eleven processes in memory.
fn config() -> LanguageModelConfig {
    Preset::Medium.config(50_257).with_context(512)
}

/// Prints a row for each variant.
pub fn table() {
    let folder = tempfile::tempdir().expect("a folder");
    hand_over(folder.path());
    println!(
        "{:<40}{:>12}{:>12}{:>10}{:>10}{:>18}",
        "", "allocated/P", "resident/P", "s a step", "of stock", "loss"
    );
    for variant in VARIANTS {
        let numbers = printed(&["worker", "numbers", variant.name]);
        print_row(
            variant.name,
            numbers,
            Turns::start(&["worker", "turns", variant.name]),
        );
    }
    for variant in PYTORCH {
        let name = format!("PyTorch, {variant}");
        let mut numbers = pytorch("numbers", variant, folder.path());
        match crate::numbers_of(&mut numbers) {
            Ok(numbers) => {
                let turns = Turns::of(pytorch("turns", variant, folder.path()));
                print_row(&name, numbers, turns);
            }
            Err(error) => println!("{name:<40}did not run: {error}"),
        }
    }
}

/// Prints the start of a row. The time follows, measured in turn with stock Burn.
fn print_row(name: &str, [parameters, peak, resident, first, last]: [f64; 5], turns: Turns) {
    let stock = Turns::start(&["worker", "turns", STOCK.name]);
    let rounds = Rounds::of(vec![turns, stock], ROUNDS);
    println!(
        "{name:<40}{:>12.2}{:>12.2}{:>10.2}{:>10.2}{:>18}",
        peak / parameters,
        resident / parameters,
        rounds.median(0),
        rounds.ratio(0, 1, 0.5),
        format!("{first:.4} -> {last:.4}")
    );
}

fn pytorch(task: &str, variant: &str, folder: &Path) -> Command {
    let mut command = turns::pytorch(PROGRAM);
    command.args([task, variant]).arg(folder);
    command
}

/// Runs a separate process: reports its bytes and losses, or makes a step in each of its turns.
pub fn train(task: &str, variant: &str) {
    keep_pages();
    let before = of_process("VmRSS");
    let variant = VARIANTS.into_iter().find(|each| each.name == variant);
    let variant = variant.expect("a row of the table");
    let config = variant.config(config());
    let device = Device::flex().autodiff();
    let model = variant.model(&config, &device);
    let parameters = 4 * model.num_params();
    let mut step = steps(model, &variant, text(&config, &device));
    if task == "turns" {
        turns::train(step);
    }
    let losses: Vec<f64> = (0..STEPS).map(|_| step().into_scalar()).collect();
    let peak = BYTES.peak_usage();
    let resident = of_process("VmHWM").saturating_sub(before);
    println!(
        "{parameters} {peak} {resident} {} {}",
        losses[0],
        losses[STEPS - 1]
    );
}

/// Returns the resident bytes of this process, which Linux reports under `key`.
fn of_process(key: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
    1024 * kilobytes.unwrap_or_default()
}

/// Writes the initial weights and text for PyTorch.
fn hand_over(folder: &Path) {
    let config = config();
    let device = Device::flex().autodiff();
    let path = |name| folder.join(name);
    config.save(path("config.json")).expect("a file");
    let tokens = text(&config, &device).into_data();
    std::fs::write(path("tokens"), tokens.convert::<i32>().as_bytes()).expect("a file");
    let mut weights = Bytes(Vec::new());
    STOCK.model(&config, &device).visit(&mut weights);
    std::fs::write(path("weights"), weights.0).expect("a file");
}

/// Values of all parameters, in module order.
struct Bytes(Vec<u8>);

impl ModuleVisitor for Bytes {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.extend(param.val().into_data().as_bytes());
    }
}
