//! The command with small models and data.

#![allow(dead_code)] // Each test uses a part.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use backburn::memory::RecordingAllocator;
use burn::tensor::{Device, FloatDType};
use clap::{CommandFactory, FromArgMatches};
use peak_alloc::PeakAlloc;
use serde_json::json;

use finetune::config::DecoderConfig;
use finetune::decoder::Decoder;
use finetune::options::Options;
use finetune::run::run;
use finetune::weights;

/// A plan is made of what it counts.
#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();

/// Installed nowhere: it counts nothing.
pub static BYTES: PeakAlloc = PeakAlloc;

pub fn reference(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("reference")
        .join(model)
}

/// A copy of a model in a folder of its own.
pub fn copy(model: &str, to: &Path) -> PathBuf {
    let to = to.join(model);
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(reference(model)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    to
}

/// Loads the model that is in a folder.
pub fn load(folder: &Path) -> Decoder {
    let device = Device::flex().autodiff();
    let decoder = Decoder::init(&DecoderConfig::read(folder).unwrap(), true, &device);
    weights::load(decoder, folder, FloatDType::F32, None).unwrap()
}

pub fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let file = folder.join(name);
    fs::write(&file, text).unwrap();
    file
}

pub fn text(folder: &Path) -> PathBuf {
    let line = |number: usize| {
        format!(
            "The model learns line {number}, and answers {}.\n",
            number % 7
        )
    };
    write(folder, "text.txt", &(0..60).map(line).collect::<String>())
}

pub fn chats(folder: &Path) -> PathBuf {
    let chat = |number: usize| {
        let question = json!({"role": "user", "content": format!("How much is {number}?")});
        let answer = json!({"role": "assistant", "content": format!("It is {number}.")});
        json!({ "messages": [question, answer] }).to_string() + "\n"
    };
    write(
        folder,
        "chats.jsonl",
        &(0..30).map(chat).collect::<String>(),
    )
}

/// Waits for the trainings of other tests: Burn's random numbers, from which adapters are drawn, belong to the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the command with these and small options.
pub fn command(model: &Path, data: &Path, output: &Path, more: &[&str]) -> Result<usize> {
    let paths = [("--model", model), ("--data", data), ("--output", output)];
    let mut line = vec!["finetune".to_string()];
    for (option, path) in paths {
        line.extend([option.to_string(), path.display().to_string()]);
    }
    let small = "--length 16 --batch 4 --learning-rate 1e-3 --sample 4 --held-out 0.1";
    line.extend(small.split(' ').map(String::from));
    line.extend(
        more.iter()
            .flat_map(|more| more.split(' '))
            .map(String::from),
    );
    // A test replaces the small options.
    let parser = Options::command().args_override_self(true);
    let options = Options::from_arg_matches(&parser.try_get_matches_from(line)?)?;
    let _alone = alone();
    run(&options, &AtomicBool::new(false), &BYTES)
}
