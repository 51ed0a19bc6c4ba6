//! Errors of the program on bad input.

mod command;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use command::{command, copy, text, write};

/// Changes a field of a model's config.
fn with(model: &Path, field: &str, value: Value) {
    let file = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config[field] = value;
    fs::write(&file, config.to_string()).unwrap();
}

#[test]
fn bad_input_is_a_clear_error() {
    type Spoil = fn(&Path, &Path) -> (PathBuf, &'static str);
    // What is done to a model in a folder and which data is used, options, and what the error says.
    let cases: &[(Spoil, &str)] = &[
        (
            |_, folder| (text(folder), "--length 1000"),
            "`--length` is 1000, and the model was made for 256",
        ),
        (|_, folder| (text(folder), "--batch 0"), "`--batch` is 0"),
        (
            |_, folder| (text(folder), "--accumulate 5"),
            "each micro-batch takes one",
        ),
        (
            |_, folder| (text(folder), "--targets q_proj,head"),
            "names head",
        ),
        (|_, folder| (text(folder), "--merge"), "is for adapters"),
        (|_, folder| (text(folder), "--fit 1MB"), "1000000"),
        (
            |_, folder| (folder.join("none.txt"), ""),
            "none.txt can't be read",
        ),
        (
            |_, folder| (write(folder, "empty.txt", " \n"), ""),
            "empty.txt has no text to learn",
        ),
        (
            |_, folder| {
                (
                    write(folder, "a.jsonl", "{\"text\": \"yes\"}\n{\"text\": 1}\n"),
                    "",
                )
            },
            "a.jsonl:2: a line is an object",
        ),
        (
            |_, folder| (write(folder, "b.jsonl", "\n{text}"), ""),
            "b.jsonl:2: this is no JSON",
        ),
        (
            |_, folder| {
                (
                    write(
                        folder,
                        "c.jsonl",
                        "{\"messages\": [{\"role\": \"user\", \"content\": \"?\"}]}",
                    ),
                    "",
                )
            },
            "c.jsonl:1: no message has the role `assistant`",
        ),
        (
            |_, folder| {
                (
                    write(
                        folder,
                        "d.jsonl",
                        "{\"messages\": [{\"role\": \"tool\", \"content\": \"?\"}, {\"role\": \"assistant\", \"content\": \"!\"}]}",
                    ),
                    "",
                )
            },
            "unknown role",
        ),
        (
            |_, folder| {
                let file = folder.join("e.txt");
                fs::write(&file, b"first\n\xff\xfe").unwrap();
                (file, "")
            },
            "e.txt:2: this is no UTF-8 text",
        ),
        (
            |model, folder| {
                fs::remove_file(model.join("config.json")).unwrap();
                (text(folder), "")
            },
            "config.json can't be read",
        ),
        (
            |model, folder| {
                with(model, "model_type", json!("gemma2"));
                (text(folder), "")
            },
            "`model_type` is gemma2",
        ),
        (
            |model, folder| {
                with(
                    model,
                    "rope_scaling",
                    json!({"rope_type": "longrope", "factor": 2.0}),
                );
                (text(folder), "")
            },
            "`rope_type` is longrope",
        ),
        (
            |model, folder| {
                with(model, "hidden_act", json!("gelu"));
                (text(folder), "")
            },
            "`hidden_act` is gelu",
        ),
        (
            |model, folder| {
                with(model, "vocab_size", json!(300));
                (text(folder), "")
            },
            "use the tokenizer of the model",
        ),
        (
            |model, folder| {
                with(model, "num_hidden_layers", json!(3));
                (text(folder), "")
            },
            "lack [\"model.layers.2.",
        ),
        (
            |model, folder| {
                with(model, "num_hidden_layers", json!(1));
                (text(folder), "")
            },
            "the config says nothing of",
        ),
        (
            |model, folder| {
                with(model, "intermediate_size", json!(97));
                (text(folder), "")
            },
            "mlp.down_proj.weight",
        ),
        (
            |model, folder| {
                fs::remove_file(model.join("tokenizer.json")).unwrap();
                (text(folder), "")
            },
            "tokenizer.json is missing",
        ),
        (
            |model, folder| {
                fs::remove_file(model.join("model.safetensors")).unwrap();
                (text(folder), "")
            },
            "has neither `model.safetensors` nor",
        ),
        (
            |model, folder| {
                let file = model.join("model.safetensors");
                let bytes = fs::read(&file).unwrap();
                fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
                (text(folder), "")
            },
            "model.safetensors",
        ),
        (
            |model, folder| {
                let index =
                    json!({"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}});
                fs::remove_file(model.join("model.safetensors")).unwrap();
                fs::write(
                    model.join("model.safetensors.index.json"),
                    index.to_string(),
                )
                .unwrap();
                (text(folder), "")
            },
            "model-00002-of-00002.safetensors is missing",
        ),
    ];
    for (spoil, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let model = copy("llama", folder.path());
        let (data, more) = spoil(&model, folder.path());
        let more: Vec<&str> = more.split(' ').filter(|it| !it.is_empty()).collect();
        let result = command(&model, &data, &folder.path().join("out"), &more);
        let error = format!("{:#}", result.expect_err(expected));
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn output_of_another_training_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (text(folder.path()), folder.path().join("out"));
    let model = copy("llama", folder.path());
    let refused =
        |out: &Path, more: &str| format!("{:#}", command(&model, &data, out, &[more]).unwrap_err());
    assert!(refused(&model, "--steps 1").contains("is the folder of `--model`"));
    command(&model, &data, &out, &["--steps 1"]).unwrap();
    assert!(refused(&out, "--steps 1").contains("has `model.safetensors` already"));
    let other = folder.path().join("other");
    command(&model, &data, &other, &["--steps 2 --stop 1"]).unwrap();
    let error = refused(&other, "--steps 2 --seed 7");
    assert!(error.contains("`--seed` was 42 and is 7"), "{error}");
}
