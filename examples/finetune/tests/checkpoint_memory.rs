//! Memory of a training that is saved and resumed, in a process of its own.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::DType;
use clap::Parser;
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};

use finetune::config::DecoderConfig;
use finetune::decoder::Decoder;
use finetune::options::Options;
use finetune::run::run;
use finetune::weights;

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

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

#[test]
fn saved_and_resumed_training_holds_each_tensor_once() {
    let folder = tempfile::tempdir().unwrap();
    let [model, data, out] = ["model", "data.txt", "out"].map(|name| folder.path().join(name));
    let bytes = write_model(&model);
    fs::write(&data, "The model learns this line.\n".repeat(60)).unwrap();
    let line = format!(
        "finetune --model {} --data {} --output {} --length 16 --batch 1 --sample 0 --held-out 0 --steps 4 --save-every 1",
        model.display(),
        data.display(),
        out.display()
    );
    for stop in ["--stop 2", "--stop 4"] {
        let options = Options::parse_from(line.split(' ').chain(stop.split(' ')));
        BYTES.reset_peak_usage();
        let before = BYTES.current_usage();
        run(&options, &AtomicBool::new(false), &BYTES).unwrap();
        let peak = BYTES.peak_usage() - before;
        println!("{stop}: {peak} bytes at the peak, {bytes} of weights");
        // The weights and two states of AdamW are three times the weights.
        assert!(peak < 4 * bytes, "{stop}: {peak}, {bytes}");
    }
}
