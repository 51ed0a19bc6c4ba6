//! Weights in the output folder: their numbers and their type.

mod command;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use burn::module::{Module, ModuleMapper, Param};
use burn::prelude::*;
use burn::store::{ModuleStore, SafetensorsStore};
use burn::tensor::DType;
use serde_json::Value;

use command::{command, copy, load, reference, text};
use finetune::model_files;
use finetune::weights;

fn dtype(file: &Path) -> DType {
    let mut store = SafetensorsStore::from_file(file);
    let tensors = store.get_all_tensors().unwrap();
    tensors.values().next().unwrap().dtype
}

/// A copy of a model with its weights in bf16.
fn in_bf16(model: &str, to: &Path) -> PathBuf {
    let folder = copy(model, to);
    let decoder = load(&folder);
    weights::save(&decoder, &folder.join(weights::WEIGHTS), DType::BF16).unwrap();
    folder
}

/// A mapper that divides the second parameter by zero.
struct Spoil {
    parameters: usize,
}

impl ModuleMapper for Spoil {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.parameters += 1;
        match self.parameters {
            2 => param.map(|value| (value / 0.0).detach()),
            _ => param,
        }
    }
}

#[test]
fn weight_that_is_not_finite_is_never_written() {
    let folder = tempfile::tempdir().unwrap();
    let base = reference("llama");
    let decoder = load(&base).map(&mut Spoil { parameters: 0 });
    let error = model_files::write_model(&decoder, &base, folder.path(), DType::F32).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("`model.layers.0.input_layernorm.weight`"),
        "{error}"
    );
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
}

#[test]
fn printed_loss_is_that_of_written_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = text(folder.path());
    let model = in_bf16("llama", folder.path());
    for (options, expected) in [
        ("", DType::BF16),
        ("--dtype f32", DType::F32),
        ("--dtype f16", DType::F16),
        ("--weights stochastic", DType::BF16),
        ("--method lora --merge", DType::BF16),
    ] {
        let out = folder.path().join("out");
        let more: Vec<&str> = options.split(' ').filter(|it| !it.is_empty()).collect();
        command(&model, &data, &out, &[&["--steps 8"], &more[..]].concat()).unwrap();
        assert_eq!(dtype(&out.join(weights::WEIGHTS)), expected, "{options}");
        // A training of the written file prints its loss before the first step: the card has both.
        let again = folder.path().join("again");
        command(&out, &data, &again, &["--steps 1"]).unwrap();
        let [after, before] = [(&out, "after"), (&again, "before")].map(|(folder, when)| {
            let card = fs::read_to_string(folder.join("README.md")).unwrap();
            let row = format!("| held-out loss {when} | ");
            let rest = card.split(&row).nth(1).unwrap();
            rest.split(' ').next().unwrap().parse::<f64>().unwrap()
        });
        assert!(
            (after - before).abs() < 2e-4,
            "{options}: {after}, {before}"
        );
        for folder in [out, again] {
            fs::remove_dir_all(folder).unwrap();
        }
    }
}

#[test]
fn adapters_in_bf16_are_merged_in_f32() {
    let folder = tempfile::tempdir().unwrap();
    let (data, model) = (text(folder.path()), in_bf16("llama", folder.path()));
    for (method, stored) in [("lora", "bf16"), ("qlora4", "bf16"), ("lora", "stochastic")] {
        let out = folder.path().join(format!("{method}-{stored}"));
        let options = format!("--steps 8 --method {method} --weights {stored} --merge --dtype f32");
        command(&model, &data, &out, &[&options]).unwrap();
        let mut file = SafetensorsStore::from_file(out.join(weights::WEIGHTS));
        let tensors = file.get_all_tensors().unwrap();
        let adapted = &tensors["model.layers.0.self_attn.q_proj.weight"];
        let bytes = adapted.to_bytes().unwrap();
        // A number of bf16 has zeros there.
        let is_of_bf16 = bytes.chunks(4).all(|value| value[..2] == [0, 0]);
        assert!(!is_of_bf16, "{method}, {stored}");
    }
}

#[test]
fn rounding_that_loses_gain_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (in_bf16("llama", folder.path()), text(folder.path()));
    for (name, options, is_reported) in [
        ("bf16", "--dtype base", true),
        ("f32", "--dtype f32", false),
        ("stochastic", "--weights stochastic", false),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_finetune"));
        for (option, path) in [
            ("--model", &model),
            ("--data", &data),
            ("--output", &folder.path().join(name)),
        ] {
            command.arg(option).arg(path);
        }
        // Steps of this rate are small beside the numbers of bf16.
        let small = "--length 16 --batch 4 --sample 0 --steps 30 --learning-rate 1e-5";
        command.args(small.split(' ')).args(options.split(' '));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{options}");
        let text = String::from_utf8(output.stdout).unwrap();
        let is_found = text.contains("rounding to bf16 loses");
        assert_eq!(is_found, is_reported, "{options}: {text}");
        let is_advised = text.contains("`--weights stochastic` in another folder");
        assert_eq!(is_advised, is_reported, "{options}: {text}");
    }
}

#[test]
fn config_has_type_of_written_weights() {
    let folder = tempfile::tempdir().unwrap();
    let data = text(folder.path());
    let read = |folder: &Path| -> Value {
        serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap()
    };
    for (model, key, declared) in [
        ("llama", "torch_dtype", "float32"),
        ("llama-tied", "dtype", "float32"),
        // The weights are in f32.
        ("qwen2", "torch_dtype", "bfloat16"),
        ("qwen3", "dtype", "bfloat16"),
    ] {
        let base = copy(model, folder.path());
        let mut config = read(&base);
        config[key] = declared.into();
        fs::write(base.join("config.json"), config.to_string()).unwrap();
        for (option, name) in [("bf16", "bfloat16"), ("base", "float32")] {
            let out = folder.path().join(format!("{model}-{option}"));
            let options = format!("--steps 1 --dtype {option}");
            command(&base, &data, &out, &[&options]).unwrap();
            assert_eq!(read(&out)[key], name, "{model}");
        }
    }
}
