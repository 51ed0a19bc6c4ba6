//! Memory of trainings that are planned, saved and resumed.

use std::fs;
use std::path::Path;
use std::process::Command;

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::DType;
use serde_json::{Value, json};
use tempfile::TempDir;

use finetune::config::DecoderConfig;
use finetune::decoder::Decoder;
use finetune::weights;

const BASE: &str = "--length 64 --batch 1 --steps 4 --save-every 1";

/// Writes a model whose weights are larger than the activations; returns the bytes of the weights.
fn write_model(folder: &Path) -> usize {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/llama");
    fs::create_dir(folder).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(reference.join(name), folder.join(name)).unwrap();
    }
    let config = fs::read(reference.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["hidden_size"] = json!(192);
    config["intermediate_size"] = json!(768);
    config["num_hidden_layers"] = json!(6);
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let config = DecoderConfig::read(folder).unwrap();
    let decoder = Decoder::init(&config, true, &Device::flex());
    weights::save(&decoder, &folder.join(weights::WEIGHTS), DType::F32).unwrap();
    4 * decoder.num_params()
}

/// A model and data in a folder.
struct Training {
    folder: TempDir,
    /// Bytes of the weights in f32.
    bytes: usize,
}

impl Training {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bytes = write_model(&folder.path().join("model"));
        let text = "The model learns this line.\n".repeat(60);
        fs::write(folder.path().join("data.txt"), text).unwrap();
        Self { folder, bytes }
    }

    /// Runs the program in a process of its own. Returns its peak in megabytes, or its error.
    fn peak(&self, out: &str, options: &str) -> Result<f64, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_finetune"));
        for (option, name) in [
            ("--model", "model"),
            ("--data", "data.txt"),
            ("--output", out),
        ] {
            command.arg(option).arg(self.folder.path().join(name));
        }
        command.args(BASE.split(' ')).args(options.split(' '));
        if !options.contains("--sample") {
            command.args(["--sample", "0", "--held-out", "0"]);
        }
        // Each thread has a buffer for matrix products.
        command.env("RAYON_NUM_THREADS", "2");
        let output = command.env("RUST_BACKTRACE", "0").output();
        let output = output.unwrap();
        if !output.status.success() {
            return Err(String::from_utf8(output.stderr).unwrap());
        }
        let text = String::from_utf8(output.stdout).unwrap();
        let peak = text.lines().find_map(|line| line.strip_prefix("peak "));
        Ok(peak.unwrap().trim_end_matches(" MB").parse().unwrap())
    }
}

#[test]
fn saved_and_resumed_training_holds_each_tensor_once() {
    let training = Training::new();
    // The weights and two states of AdamW are three times the weights. The program takes 8 MB.
    let most = 4.5 * training.bytes as f64 / 1e6;
    for stop in ["--stop 2", "--stop 4"] {
        let peak = training.peak("out", stop).unwrap();
        assert!(peak < most, "{stop}: {peak} of {most} MB");
    }
}

#[test]
fn planned_training_is_stopped_and_resumed_within_its_budget() {
    let training = Training::new();
    for (method, megabytes, dtype) in [
        ("full", 31, "base"),
        ("full", 28, "base"),
        // Planned with weights in bf16.
        ("full", 24, "bf16"),
        ("lora", 26, "base"),
        ("qlora8", 24, "base"),
    ] {
        let options = format!("--method {method} --fit {megabytes}MB --dtype {dtype}");
        let out = format!("{method}-{megabytes}");
        for stop in ["--stop 2", "--stop 4"] {
            let peak = training.peak(&out, &format!("{options} {stop}")).unwrap();
            println!("{method}, {stop}: {peak} of {megabytes} MB");
            assert!(peak <= f64::from(megabytes), "{options} {stop}: {peak}");
        }
    }
    let fit = "--method lora --fit 26MB --stop 1";
    training.peak("other", fit).unwrap();
    let other = training.peak("other", "--method lora --keep-activations");
    let error = other.unwrap_err();
    assert!(error.contains("--keep-activations"), "{error}");
}

#[test]
fn result_that_takes_more_than_the_budget_is_refused_before_training() {
    let training = Training::new();
    for (options, advice) in [
        ("--method qlora8 --fit 21MB --merge", "leave out `--merge`"),
        ("--method lora --fit 8MB", "the base takes"),
    ] {
        let error = training.peak("out", options).unwrap_err();
        assert!(error.contains(advice), "{error}");
    }
}

/// From a budget that is too small, follows the errors to one that is enough, for the training, its result and a sample.
#[test]
fn budget_that_errors_name_is_enough_for_whole_run() {
    let training = Training::new();
    let check = |method: &str| {
        let mut bytes = 8_000_000;
        let out = method.replace(' ', "");
        let run = |bytes: usize, more: &str| {
            let options =
                format!("--method {method} --fit {bytes} --sample 4 --held-out 0.1{more}");
            training.peak(&out, &options)
        };
        let stopped = loop {
            match run(bytes, " --stop 2") {
                Ok(peak) => break peak,
                Err(error) => bytes = named(&error, bytes),
            }
        };
        let ended = run(bytes, "").unwrap();
        // The peak is printed in whole megabytes.
        let most = bytes as f64 / 1e6 + 0.5;
        println!("{method}: {stopped} and {ended} of {most} MB");
        assert!(stopped <= most && ended <= most, "{method}");
    };
    let methods = [
        "full",
        "full --dtype bf16",
        "lora --merge",
        "qlora8 --merge",
        "qlora4",
    ];
    // Each in processes of its own.
    std::thread::scope(|scope| {
        for method in methods {
            scope.spawn(move || check(method));
        }
    });
}

/// Returns the largest number of bytes in an error, which is above `bytes`.
#[track_caller]
fn named(error: &str, bytes: usize) -> usize {
    let numbers = error.split(|c: char| !c.is_ascii_digit());
    let largest = numbers.filter_map(|number| number.parse().ok()).max();
    let largest: usize = largest.unwrap_or(0);
    assert!(largest > bytes, "{error}");
    largest
}

#[test]
fn data_that_takes_more_than_the_budget_is_refused() {
    let training = Training::new();
    let text = "The model learns this line.\n".repeat(30_000);
    fs::write(training.folder.path().join("data.txt"), text).unwrap();
    let error = training.peak("out", "--fit 4MB").unwrap_err();
    assert!(error.contains("to read the data takes"), "{error}");
}

#[test]
fn result_in_bf16_of_stochastic_weights_takes_no_copy() {
    let training = Training::new();
    let options = "--weights stochastic --states 4 --dtype bf16";
    let stopped = training
        .peak("out", &format!("{options} --stop 2"))
        .unwrap();
    let written = training.peak("out", options).unwrap();
    // A copy in f32 would take 12 MB.
    assert!(written < stopped + 2.0, "{written} after {stopped}");
}
