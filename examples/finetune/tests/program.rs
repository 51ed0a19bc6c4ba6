//! Output of the program, and resumed trainings.

mod command;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use burn::store::{ModuleStore, SafetensorsStore, bridge};
use burn::tensor::TensorData;
use clap::Parser;
use serde::Deserialize;
use serde_json::Value;

use command::{BYTES, alone, chats, command, reference, text};
use finetune::config::DecoderConfig;
use finetune::options::Options;
use finetune::run::run;
use finetune::tokens::Tokens;

fn tensors(file: &Path) -> BTreeMap<String, TensorData> {
    let mut store = SafetensorsStore::from_file(file);
    let all = store.get_all_tensors().unwrap();
    let read = |(name, tensor): (&String, _)| (name.clone(), bridge::to_data(tensor).unwrap());
    all.iter().map(read).collect()
}

#[test]
fn tokens_and_chats_equal_those_of_transformers() {
    #[derive(Deserialize)]
    struct Text {
        text: String,
        ids: Vec<u32>,
    }
    let folder = reference("qwen3");
    let config = DecoderConfig::read(&folder).unwrap();
    let tokens = Tokens::read(&folder, &config).unwrap();
    let expected = fs::read(folder.join("expected.text.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let texts: Vec<Text> = serde_json::from_value(expected["texts"].clone()).unwrap();
    for Text { text, ids } in texts {
        assert_eq!(tokens.encode(&text).unwrap(), ids, "{text}");
    }
    let chat = &expected["chat"];
    let encoded = tokens.chat(chat["messages"].as_array().unwrap()).unwrap();
    let answer = encoded.tokens.iter().zip(&encoded.counted);
    let answer: Vec<u32> = answer
        .filter(|(_, counted)| **counted)
        .map(|(token, _)| *token)
        .collect();
    // The answer and the end of the turn; the question is not learned.
    let whole = chat["text"].as_str().unwrap();
    let prompt = chat["prompt"].as_str().unwrap();
    let expected = whole.strip_prefix(prompt).unwrap().replace("</s>", "");
    assert_eq!(tokens.decode(&answer).unwrap(), expected);
}

#[test]
fn resumed_training_equals_uninterrupted_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = text(folder.path());
    for (more, file) in [
        ("--accumulate 2", "model.safetensors"),
        ("--method lora --pad", "adapter_model.safetensors"),
        ("--weights bf16 --states 8", "model.safetensors"),
        ("--method qlora4 --merge", "model.safetensors"),
    ] {
        let model = reference("llama-tied");
        let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
        let steps = "--steps 6 --save-every 2";
        assert_eq!(
            command(&model, &data, &whole, &[more, steps]).unwrap(),
            6,
            "{more}"
        );
        assert_eq!(
            command(&model, &data, &parts, &[more, steps, "--stop 3"]).unwrap(),
            3
        );
        assert!(!parts.join(file).exists());
        assert_eq!(command(&model, &data, &parts, &[more, steps]).unwrap(), 6);
        let (whole_tensors, parts_tensors) =
            (tensors(&whole.join(file)), tensors(&parts.join(file)));
        assert_eq!(whole_tensors.len(), parts_tensors.len());
        for (name, data) in &whole_tensors {
            assert_eq!(data, &parts_tensors[name], "{more}, {name}");
        }
        for folder in [whole, parts] {
            fs::remove_dir_all(folder).unwrap();
        }
    }
}

#[test]
fn adapters_of_another_type_are_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (reference("llama"), text(folder.path()));
    let train = |out: &Path, weights: &str, more: &[&str]| {
        let options = format!("--method lora --steps 1 --weights {weights}");
        command(&model, &data, out, &[&[options.as_str()], more].concat()).unwrap();
    };
    for (first, second) in [("bf16", "f32"), ("f32", "bf16")] {
        let first_out = folder.path().join(first);
        train(&first_out, first, &[]);
        let adapters = format!("--adapters {}", first_out.display());
        train(
            &folder.path().join("next"),
            second,
            &[&adapters, "--overwrite"],
        );
        for out in ["next", first] {
            fs::remove_dir_all(folder.path().join(out)).unwrap();
        }
    }
}

#[test]
fn stop_in_middle_leaves_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (chats(folder.path()), folder.path().join("out"));
    let line = format!(
        "finetune --model {} --data {} --output {} --length 32 --batch 2 --sample 4 --steps 5",
        reference("qwen2").display(),
        data.display(),
        out.display()
    );
    let options = Options::parse_from(line.split(' '));
    let _alone = alone();
    // As Ctrl-C sets it.
    assert_eq!(run(&options, &AtomicBool::new(true), &BYTES).unwrap(), 1);
    assert_eq!(run(&options, &AtomicBool::new(false), &BYTES).unwrap(), 5);
    assert!(out.join("model.safetensors").exists());
    let copied = fs::read(out.join("config.json")).unwrap();
    assert_eq!(
        copied,
        fs::read(reference("qwen2").join("config.json")).unwrap()
    );
}

#[test]
fn unwritable_output_leaves_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (text(folder.path()), folder.path().join("out"));
    let model = reference("llama");
    let train = || command(&model, &data, &out, &["--steps 2"]);
    let in_the_way = out.join("config.json");
    fs::create_dir_all(&in_the_way).unwrap();
    let error = format!("{:#}", train().unwrap_err());
    assert!(error.contains("the same command resumes it"), "{error}");
    fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(train().unwrap(), 2);
    assert!(out.join("model.safetensors").exists());
}
