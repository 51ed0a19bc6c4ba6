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

/// Panics unless the command is refused with an error that says `words`. `spoil` changes the model in the first folder, and returns
/// the data, which it writes into the second.
#[track_caller]
fn assert_refused(options: &str, words: &str, spoil: impl Fn(&Path, &Path) -> PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let model = copy("llama", folder.path());
    let data = spoil(&model, folder.path());
    let options: Vec<&str> = options.split(' ').filter(|it| !it.is_empty()).collect();
    let result = command(&model, &data, &folder.path().join("out"), &options);
    let error = format!("{:#}", result.expect_err(words));
    assert!(error.contains(words), "{words}: {error}");
}

#[test]
fn bad_options_are_refused_by_name() {
    for (options, words) in [
        (
            "--length 1000",
            "`--length` is 1000, and the model was made for 256",
        ),
        ("--batch 0", "`--batch` is 0"),
        ("--accumulate 5", "each micro-batch takes one"),
        ("--method lora --targets q_proj,head", "names head"),
        ("--merge", "is for adapters"),
        ("--fit 1MB", "raise `--fit`, lower `--length`"),
    ] {
        assert_refused(options, words, |_, folder| text(folder));
    }
}

#[test]
fn bad_data_is_refused_with_file_and_line() {
    let without_answer = r#"{"messages": [{"role": "user", "content": "?"}]}"#;
    let unknown_role = r#"{"messages": [{"role": "tool", "content": "?"}, {"role": "assistant", "content": "!"}]}"#;
    for (file, text, words) in [
        ("empty.txt", " \n", "empty.txt contains no text"),
        (
            "a.jsonl",
            "{\"text\": \"yes\"}\n{\"text\": 1}\n",
            "a.jsonl:2: a line is an object",
        ),
        ("b.jsonl", "\n{text}", "b.jsonl:2: the line is not JSON"),
        (
            "b.json",
            "[\n{}\n]\n",
            "b.json, entry 1: a line is an object",
        ),
        ("none.jsonl", "\n\n", "none.jsonl contains no text"),
        (
            "c.jsonl",
            without_answer,
            "c.jsonl:1: no message has the role `assistant`",
        ),
        ("d.jsonl", unknown_role, "unknown role"),
        (
            "e.jsonl",
            r#"{"messages": [{"role": "assistant", "content": "\\\"1"}], "tools": [12345678901234567890, -1, 1e30, 100000000000000000000]}"#,
            "e.jsonl:1: the integer 100000000000000000000 has more than 64 bits",
        ),
    ] {
        assert_refused("", words, |_, folder| write(folder, file, text));
    }
    let missing = |_: &Path, folder: &Path| folder.join("none.txt");
    assert_refused("", "none.txt can't be read", missing);
    assert_refused("", "e.txt:2: the text is not UTF-8", |_, folder| {
        let file = folder.join("e.txt");
        fs::write(&file, b"first\n\xff\xfe").unwrap();
        file
    });
}

#[test]
fn bad_model_is_refused_by_field_or_file() {
    let longrope = json!({"rope_type": "longrope", "short_factor": [1.0]});
    let yarn = json!({"rope_type": "yarn", "factor": 2.0, "beta_fast": 0.0});
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0,
        "original_max_position_embeddings": 64});
    let of_layers = json!({"full_attention": {"rope_type": "default", "rope_theta": 1e6}});
    for (field, value, words) in [
        ("model_type", json!("gemma2"), "`model_type` is gemma2"),
        ("rope_scaling", longrope, "`rope_type` is longrope"),
        ("rope_scaling", yarn, "`beta_fast` of rope is 0"),
        ("rope_scaling", llama3, "`high_freq_factor` of rope is 1"),
        ("rope_parameters", of_layers, "field `full_attention`"),
        ("hidden_act", json!("gelu"), "`hidden_act` is gelu"),
        ("vocab_size", json!(300), "use the tokenizer of the model"),
        ("num_hidden_layers", json!(3), "lack [\"model.layers.2."),
        ("num_hidden_layers", json!(1), "are not in the config"),
        ("intermediate_size", json!(97), "mlp.down_proj.weight"),
    ] {
        assert_refused("", words, |model, folder| {
            with(model, field, value.clone());
            text(folder)
        });
    }
    for (model_type, kind, words) in [
        ("mistral", "full_attention", "all layers of a mistral have"),
        ("qwen2", "sliding_attention", "the layers have no window"),
    ] {
        assert_refused("", words, |model, folder| {
            with(model, "model_type", json!(model_type));
            with(model, "layer_types", json!([kind, kind]));
            text(folder)
        });
    }
    for (file, words) in [
        ("config.json", "config.json can't be read"),
        ("tokenizer.json", "tokenizer.json is missing"),
        ("model.safetensors", "has neither `model.safetensors` nor"),
    ] {
        assert_refused("", words, |model, folder| {
            fs::remove_file(model.join(file)).unwrap();
            text(folder)
        });
    }
    for length in [0, 2000, 90_000] {
        let words = "model.safetensors is incomplete or of another format";
        assert_refused("", words, |model, folder| {
            let file = model.join("model.safetensors");
            let bytes = fs::read(&file).unwrap();
            fs::write(&file, &bytes[..length]).unwrap();
            text(folder)
        });
    }
    assert_refused("", "choose `--dtype f32`", |model, folder| {
        let header = r#"{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#;
        let length = (header.len() as u64).to_le_bytes();
        let bytes = [&length[..], header.as_bytes(), &[0_u8; 8]].concat();
        fs::write(model.join("model.safetensors"), bytes).unwrap();
        text(folder)
    });
    let part = "model-00002-of-00002.safetensors";
    assert_refused("", &format!("{part} is missing"), |model, folder| {
        let index = json!({"weight_map": {"lm_head.weight": part}}).to_string();
        fs::remove_file(model.join("model.safetensors")).unwrap();
        fs::write(model.join("model.safetensors.index.json"), index).unwrap();
        text(folder)
    });
}

#[test]
fn output_of_another_training_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (text(folder.path()), folder.path().join("out"));
    let model = copy("llama", folder.path());
    let refused =
        |out: &Path, more: &str| format!("{:#}", command(&model, &data, out, &[more]).unwrap_err());
    assert!(refused(&model, "--steps 1").contains("is the folder of `--model`"));
    let adapters = folder.path().join("adapters");
    let lora = "--method lora --steps 1 --overwrite";
    command(&model, &data, &adapters, &[lora]).unwrap();
    let error = refused(
        &adapters,
        &format!("{lora} --adapters {}", adapters.display()),
    );
    assert!(error.contains("is the folder of `--adapters`"), "{error}");
    command(&model, &data, &out, &["--steps 1"]).unwrap();
    fs::remove_dir_all(out.join("checkpoints")).unwrap();
    let error = refused(&out, "--steps 2");
    assert!(
        error.contains("has `model.safetensors` of another training already"),
        "{error}"
    );
    let other = folder.path().join("other");
    command(&model, &data, &other, &["--steps 2 --stop 1"]).unwrap();
    let error = refused(&other, "--steps 2 --seed 7");
    assert!(error.contains("`--seed` was 42 and is 7"), "{error}");
}
