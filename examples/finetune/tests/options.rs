//! Options and settings that the program refuses by name.

mod command;

use std::fs;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use serde_json::{Value, json};

use command::{command, copy, reference, text};
use finetune::config::DecoderConfig;
use finetune::options::Options;

/// Returns the error of the command with a model.
fn refused(model: &Path, options: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let data = text(folder.path());
    let options: Vec<&str> = options.split(' ').filter(|it| !it.is_empty()).collect();
    let result = command(model, &data, &folder.path().join("out"), &options);
    match result {
        Ok(_) => panic!("{options:?} is accepted"),
        Err(error) => format!("{error:#}"),
    }
}

fn edit(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    change(&mut value);
    fs::write(file, value.to_string()).unwrap();
}

#[test]
fn help_describes_each_option() {
    for argument in Options::command().get_arguments() {
        assert!(argument.get_help().is_some(), "{}", argument.get_id());
    }
}

#[test]
fn help_has_each_default() {
    let mut command = Options::command();
    let help = command.render_long_help().to_string();
    let mut written = 0;
    for argument in command.get_arguments() {
        let has_default = !argument.get_default_values().is_empty();
        written += usize::from(has_default && argument.get_action().takes_values());
        let text = argument.get_help().unwrap().to_string();
        let described = [
            "states",
            "rank",
            "alpha",
            "targets",
            "adapters",
            "length",
            "learning_rate",
            "prompt",
        ];
        let is_described = described.contains(&argument.get_id().as_str());
        assert_eq!(text.contains("by default"), is_described, "{text}");
    }
    assert_eq!(help.matches("[default: ").count(), written);
}

#[test]
fn version_is_printed() {
    let error = Options::try_parse_from(["finetune", "--version"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DisplayVersion);
    let version = format!("finetune {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(error.to_string(), version);
}

#[test]
fn option_out_of_range_is_refused_by_name() {
    for options in [
        "--learning-rate nan",
        "--learning-rate inf",
        "--learning-rate=-1e-5",
        "--learning-rate -1",
        "--learning-rate 0",
        "--weight-decay nan",
        "--weight-decay inf",
        "--weight-decay -0.1",
        "--clip nan",
        "--clip -1",
        "--warm-up nan",
        "--warm-up 1",
        "--warm-up -1",
        "--held-out nan",
        "--held-out -0.1",
        "--batch 100000000000",
        "--batch 100000",
        "--epochs 100000000000",
        "--steps 18446744073709551615",
        "--save-every 0min",
        "--keep-last 0",
        "--method=lora --alpha nan",
        "--method=lora --alpha 0",
        "--method=lora --alpha -1",
        "--method=lora --rank 0",
        "--method=lora --rank 100000000000",
    ] {
        let error = refused(&reference("llama"), options);
        let option = options.rsplit("--").next().unwrap();
        let option = option.split(['=', ' ']).next().unwrap();
        assert!(error.contains(&format!("--{option}")), "{options}: {error}");
    }
}

#[test]
fn option_without_effect_is_refused_by_name() {
    for (options, option) in [
        ("--rank 4", "--rank"),
        ("--alpha 4", "--alpha"),
        ("--targets q_proj", "--targets"),
        ("--merge", "--merge"),
        ("--method lora --dtype f32", "--dtype"),
        ("--steps 1 --epochs 2", "--epochs"),
        ("--steps 3 --stop 4", "--stop"),
        ("--keep-activations --fit 6GB", "--fit"),
        ("--patience 3", "--save-every"),
    ] {
        let error = refused(&reference("llama"), options);
        assert!(error.contains(option), "{options}: {error}");
    }
}

#[test]
fn option_given_twice_is_refused_by_name() {
    for options in ["--method lora --method full", "--prompt a --prompt b"] {
        let line = format!("finetune --model m --data d --output o {options}");
        let error = Options::try_parse_from(line.split(' ')).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("cannot be used multiple times"), "{error}");
    }
}

#[test]
fn config_out_of_range_is_refused_by_field() {
    for (field, value) in [
        ("rms_norm_eps", json!(-1)),
        ("rms_norm_eps", json!(0)),
        ("num_hidden_layers", json!(1_u64 << 63)),
        ("hidden_size", json!(1_u64 << 63)),
        ("vocab_size", json!(0)),
        ("head_dim", json!(1_u64 << 62)),
        ("rope_theta", json!(-1)),
        ("max_position_embeddings", json!(0)),
        ("original_max_position_embeddings", json!(64)),
        ("partial_rotary_factor", json!(0.5)),
        ("rope_interleaved", json!(true)),
        ("logits_scaling", json!(8.0)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let model = copy("llama", folder.path());
        edit(&model.join("config.json"), |config| {
            config.as_object_mut().unwrap().remove("rope_parameters");
            config[field] = value.clone();
        });
        let error = refused(&model, "");
        assert!(error.contains(field), "{field} {value}: {error}");
    }
}

#[test]
fn empty_rope_scaling_leaves_rope_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let model = copy("llama", folder.path());
    let rope = |field: &str, value: Value| {
        edit(&model.join("config.json"), |config| {
            config[field] = value.clone()
        });
        DecoderConfig::read(&model).unwrap().rope
    };
    let linear = json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0});
    rope("rope_scaling", Value::Null);
    let expected = rope("rope_parameters", linear);
    assert_eq!(rope("rope_scaling", json!({})), expected);
}

#[test]
fn config_of_another_type_is_refused_by_field() {
    for (field, value) in [
        ("hidden_size", json!("576")),
        ("tie_word_embeddings", json!(null)),
        ("eos_token_id", json!(-1)),
        ("rope_scaling", json!([1])),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let model = copy("llama", folder.path());
        edit(&model.join("config.json"), |config| {
            config.as_object_mut().unwrap().remove("rope_parameters");
            config[field] = value.clone();
        });
        let error = refused(&model, "");
        assert!(error.contains(&format!("`{field}`: ")), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let model = copy("llama", folder.path());
    edit(&model.join("config.json"), |config| {
        config.as_object_mut().unwrap().remove("hidden_size");
    });
    let error = refused(&model, "");
    assert!(
        error.contains("config.json: missing field `hidden_size`"),
        "{error}"
    );
}

#[test]
fn index_without_tensor_is_refused() {
    let index = "model.safetensors.index.json";
    for (removed, words) in [
        ("", "`weight_map` in"),
        (
            "model.norm.weight",
            "`model.norm.weight` is in a file, but not",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let model = copy("mistral", folder.path());
        edit(&model.join(index), |index| {
            let map = index["weight_map"].as_object_mut().unwrap();
            map.retain(|name, _| !removed.is_empty() && name != removed);
        });
        let error = refused(&model, "");
        assert!(error.contains(words), "{removed}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let model = copy("mistral", folder.path());
    edit(&model.join(index), |index| {
        index["weight_map"]["model.other.weight"] = json!("model-00001-of-00003.safetensors");
    });
    let error = refused(&model, "");
    assert!(
        error.contains("`model.other.weight` is in the index, but not"),
        "{error}"
    );
}

#[test]
fn tensor_in_two_files_is_refused() {
    let index = "model.safetensors.index.json";
    let folder = tempfile::tempdir().unwrap();
    let model = copy("mistral", folder.path());
    let first = "model-00001-of-00003.safetensors";
    fs::copy(model.join(first), model.join("more.safetensors")).unwrap();
    edit(&model.join(index), |index| {
        index["weight_map"]["more"] = json!("more.safetensors");
    });
    let error = refused(&model, "");
    assert!(error.contains("is in two of the files"), "{error}");
}

#[test]
fn base_with_number_that_is_not_finite_is_refused() {
    for number in [f32::NAN, f32::INFINITY] {
        let folder = tempfile::tempdir().unwrap();
        let model = copy("llama", folder.path());
        let file = model.join("model.safetensors");
        let mut bytes = fs::read(&file).unwrap();
        let last = bytes.len() - 4;
        bytes[last..].copy_from_slice(&number.to_le_bytes());
        fs::write(&file, bytes).unwrap();
        let error = refused(&model, "--method qlora4");
        assert!(error.contains("has a number that is not finite"), "{error}");
        assert!(error.contains("`model."), "{error}");
    }
}

#[test]
fn base_in_type_that_burn_lacks_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = copy("llama", folder.path());
    let header =
        r#"{"model.norm.weight":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}"#.to_string();
    let length = (header.len() as u64).to_le_bytes();
    let file = [&length[..], header.as_bytes(), &[0]].concat();
    fs::write(model.join("model.safetensors"), file).unwrap();
    let error = refused(&model, "");
    assert!(error.contains("has the type F8_E4M3"), "{error}");
}

#[test]
fn base_whose_loss_is_not_finite_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = copy("llama", folder.path());
    let file = model.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let weights = bytes.len() / 2 / 4 * 4;
    for number in bytes[weights..].chunks_exact_mut(4) {
        number.copy_from_slice(&3e38_f32.to_le_bytes());
    }
    fs::write(&file, bytes).unwrap();
    let error = refused(&model, "--length 8");
    assert!(error.contains("which no learning rate can mend"), "{error}");
}

#[test]
fn tied_model_with_another_head_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    // This model has a head of its own.
    let model = copy("llama", folder.path());
    edit(&model.join("config.json"), |config| {
        config["tie_word_embeddings"] = json!(true);
    });
    let error = refused(&model, "");
    assert!(error.contains("`tie_word_embeddings`"), "{error}");
    assert!(error.contains("`lm_head.weight`"), "{error}");
}

#[test]
fn output_larger_than_free_disk_is_refused() {
    let error = refused(
        &reference("llama"),
        "--steps 1000000000 --save-every 1 --keep-last 1000000000",
    );
    assert!(error.contains("lower `--keep-last`"), "{error}");
}
