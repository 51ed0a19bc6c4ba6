//! The same network in Burn and in PyTorch, from the same weights, on the same text.

use std::path::Path;
use std::process::Command;

use backburn::memory::keep_pages;
use burn::config::Config;
use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;

use crate::model::{LanguageModelConfig, Preset};
use crate::training::{steps, text};
use crate::turns::{self, Rounds, Way as Turns};
use crate::way::{BLOCKS, CHUNKED, FUSED, STOCK, Way};
use crate::{BYTES, printed};

const SINGLE_PASS: Way = Way {
    name: "single-pass",
    single_pass: true,
    ..FUSED
};
const WAYS: [Way; 5] = [
    STOCK,
    FUSED,
    SINGLE_PASS,
    Way {
        name: "single-pass-blocks",
        single_pass: true,
        ..BLOCKS
    },
    Way {
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
/// Steps whose losses and bytes are told; in PyTorch, too.
const STEPS: usize = 3;
const ROUNDS: usize = 5;

/// A network that has room for eleven ways to train it, one beside the other.
fn config() -> LanguageModelConfig {
    Preset::Medium.config(50_257).with_context(512)
}

/// Prints a row for each way.
pub fn table() {
    let folder = tempfile::tempdir().expect("a folder");
    hand_over(folder.path());
    println!(
        "{:<40}{:>12}{:>12}{:>10}{:>10}{:>18}",
        "", "allocated/P", "resident/P", "s a step", "of stock", "loss"
    );
    for way in WAYS {
        let numbers = printed(&["beside", "numbers", way.name]);
        print_row(
            way.name,
            numbers,
            Turns::start(&["beside", "turns", way.name]),
        );
    }
    for way in PYTORCH {
        let name = format!("PyTorch, {way}");
        let mut numbers = pytorch("numbers", way, folder.path());
        match crate::numbers_of(&mut numbers) {
            Ok(numbers) => {
                let turns = Turns::of(pytorch("turns", way, folder.path()));
                print_row(&name, numbers, turns);
            }
            Err(error) => println!("{name:<40}did not run: {error}"),
        }
    }
}

/// The rest of a row is the time: it takes turns with stock Burn.
fn print_row(name: &str, [parameters, peak, resident, first, last]: [f64; 5], turns: Turns) {
    let stock = Turns::start(&["beside", "turns", STOCK.name]);
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

/// PyTorch on a heap that keeps its pages as Burn's does, with threads that do not spin while the machine does something else.
fn pytorch(task: &str, way: &str, folder: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg(PROGRAM).args([task, way]).arg(folder);
    command.env("MALLOC_TRIM_THRESHOLD_", "1000000000000");
    command.env("MALLOC_MMAP_THRESHOLD_", "33554432");
    command.env("MALLOC_ARENA_MAX", "1");
    command.env("OMP_WAIT_POLICY", "PASSIVE");
    command
}

/// What a process of its own does: tells its bytes and losses, or makes a step each time that it is its turn.
pub fn train(task: &str, way: &str) {
    keep_pages();
    let before = of_process("VmRSS");
    let way = WAYS.into_iter().find(|each| each.name == way);
    let way = way.expect("a row of the table");
    let config = way.config(config());
    let device = Device::flex().autodiff();
    let model = way.model(&config, &device);
    let parameters = 4 * model.num_params();
    let mut step = steps(model, &way, text(&config, &device));
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

/// Bytes of this process that are in memory, as Linux has them under `key`.
fn of_process(key: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
    1024 * kilobytes.unwrap_or_default()
}

/// Writes what PyTorch starts from.
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

/// The values of all parameters, in module order.
struct Bytes(Vec<u8>);

impl ModuleVisitor for Bytes {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.extend(param.val().into_data().as_bytes());
    }
}
