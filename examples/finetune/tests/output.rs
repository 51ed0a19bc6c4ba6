//! Files in the output folder.

mod command;

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;

use command::{BYTES, alone, command, copy, load, reference, text};
use finetune::options::Options;
use finetune::output;
use finetune::run::run;
use finetune::weights;

/// Names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.path().is_file());
    let mut names: Vec<String> = files
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn foreign_file_is_replaced_only_with_overwrite() {
    let folder = tempfile::tempdir().unwrap();
    let (data, model) = (text(folder.path()), reference("llama"));
    for name in [
        "config.json",
        "tokenizer.json",
        "model-00001-of-00002.safetensors",
        "adapter_config.json",
        "README.md",
        "additional_chat_templates/tool_use.jinja",
    ] {
        let out = folder.path().join(name);
        fs::create_dir_all(out.join(name).parent().unwrap()).unwrap();
        fs::write(out.join(name), "{}").unwrap();
        fs::write(out.join("notes.txt"), "mine").unwrap();
        let error = command(&model, &data, &out, &["--steps 1"]).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains(name) && error.contains("--overwrite"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(out.join(name)).unwrap(), "{}");
        command(&model, &data, &out, &["--steps 1 --overwrite"]).unwrap();
        let is_stale = fs::read_to_string(out.join(name)).is_ok_and(|text| text == "{}");
        assert!(!is_stale, "{name}");
        assert!(out.join("notes.txt").exists());
    }
}

#[test]
fn foreign_checkpoint_is_replaced_only_with_overwrite() {
    let folder = tempfile::tempdir().unwrap();
    let (data, model) = (text(folder.path()), reference("llama"));
    let options = "--steps 1 --save-every 1 --keep-best --held-out 0.2";
    for name in ["checkpoints/step-1", "checkpoints/best/step-1"] {
        let out = folder.path().join(name.replace('/', "-"));
        let file = out.join(name).join("model.pt");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "theirs").unwrap();
        let error = command(&model, &data, &out, &[options]).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains(name) && error.contains("--overwrite"),
            "{error}"
        );
        assert!(file.exists());
        command(&model, &data, &out, &[&format!("{options} --overwrite")]).unwrap();
        assert!(!file.exists(), "{name}");
    }
    // Other folders stay, and so do files in a checkpoint of this program.
    let out = folder.path().join("out");
    let others = [
        "checkpoints/hf/model.safetensors",
        "checkpoints/step-1/notes.md",
    ];
    command(&model, &data, &out, &["--steps 1 --save-every 1"]).unwrap();
    for other in others {
        fs::create_dir_all(out.join(other).parent().unwrap()).unwrap();
        fs::write(out.join(other), "theirs").unwrap();
    }
    command(
        &model,
        &data,
        &out,
        &["--steps 2 --save-every 1 --keep-last 9 --overwrite"],
    )
    .unwrap();
    assert!(others.iter().all(|other| out.join(other).exists()));
}

#[test]
fn result_of_another_method_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (data, model) = (text(folder.path()), reference("llama"));
    let out = folder.path().join("out");
    command(&model, &data, &out, &["--steps 1 --method lora"]).unwrap();
    assert!(names(&out).contains(&"adapter_config.json".to_owned()));
    // Adapters come with the tokenizer and a description.
    assert!(out.join("tokenizer.json").exists() && out.join("README.md").exists());
    fs::remove_dir_all(out.join("checkpoints")).unwrap();
    command(&model, &data, &out, &["--steps 1 --overwrite"]).unwrap();
    let names = names(&out);
    assert!(names.contains(&"model.safetensors".to_owned()), "{names:?}");
    assert!(
        names.iter().all(|name| !name.contains("adapter")),
        "{names:?}"
    );
}

#[test]
fn incomplete_file_of_a_killed_run_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (data, model) = (text(folder.path()), reference("llama"));
    let out = folder.path().join("out");
    fs::create_dir_all(&out).unwrap();
    fs::write(out.join("config.json.tmp"), "of another program").unwrap();
    command(&model, &data, &out, &["--steps 1 --stop 1 --method lora"]).unwrap();
    assert!(out.join("config.json.tmp").exists());
    for file in ["adapter_model.safetensors.tmp", "notes.tmp"] {
        fs::write(out.join(file), "").unwrap();
    }
    command(&model, &data, &out, &["--steps 1 --method lora"]).unwrap();
    assert!(!out.join("adapter_model.safetensors.tmp").exists());
    assert!(out.join("notes.tmp").exists());
}

#[test]
fn name_in_card_is_a_text_of_yaml() {
    let folder = tempfile::tempdir().unwrap();
    let name = "a: \"b\" #c";
    let model = folder.path().join(name);
    fs::rename(copy("llama", folder.path()), &model).unwrap();
    let out = folder.path().join("out");
    command(&model, &text(folder.path()), &out, &["--steps 1"]).unwrap();
    let card = fs::read_to_string(out.join("README.md")).unwrap();
    let quoted = Value::from(name).to_string();
    assert!(
        card.contains(&format!("\nbase_model: {quoted}\n")),
        "{card}"
    );
}

#[test]
fn second_run_in_same_output_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (data, model) = (text(folder.path()), reference("llama"));
    let out = folder.path().join("out");
    fs::create_dir_all(&out).unwrap();
    let running = output::Output::open(&out, &[("--model", &model)], false).unwrap();
    let error = command(&model, &data, &out, &["--steps 1"]).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("another run trains in"), "{error}");
    drop(running);
    command(&model, &data, &out, &["--steps 1"]).unwrap();
}

#[test]
fn log_has_line_for_each_step() {
    let folder = tempfile::tempdir().unwrap();
    let (data, model) = (text(folder.path()), reference("llama"));
    let out = folder.path().join("out");
    command(&model, &data, &out, &["--steps 4 --stop 2"]).unwrap();
    // Steps after the checkpoint are trained again.
    let log = out.join("log.jsonl");
    let line = fs::read_to_string(&log).unwrap();
    let last = line
        .lines()
        .last()
        .unwrap()
        .replace("\"step\":2", "\"step\":3");
    fs::write(&log, line + &last + "\n").unwrap();
    command(&model, &data, &out, &["--steps 4"]).unwrap();
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    let steps: Vec<u64> = lines
        .iter()
        .map(|it| it["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [1, 2, 3, 4]);
    for field in ["loss", "rate", "norm", "tokens", "seconds"] {
        assert!(lines[3][field].is_number(), "{field}: {}", lines[3]);
    }
}

#[test]
fn time_between_checkpoints_saves() {
    let folder = tempfile::tempdir().unwrap();
    let data = text(folder.path());
    let out = folder.path().join("out");
    let line = format!(
        "finetune --model {} --data {} --output {} --length 16 --batch 4 --sample 0 --epochs 100000 --save-every 1s",
        reference("llama").display(),
        data.display(),
        out.display()
    );
    let options = Options::parse_from(line.split(' '));
    let stop = AtomicBool::new(false);
    let _alone = alone();
    thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            // Without a limit, a failed run would wait for this thread.
            while names_of_checkpoints(&out) == 0 && start.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(20));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        run(&options, &stop, &BYTES).unwrap();
    });
    assert!(names_of_checkpoints(&out) > 0);
}

fn names_of_checkpoints(out: &Path) -> usize {
    let entries = fs::read_dir(out.join("checkpoints")).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with("step-"))
        .count()
}

/// A folder whose files are links to those of the base.
#[cfg(unix)]
#[test]
fn file_of_base_that_output_links_to_is_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let files = ["config.json", "tokenizer.json", "tokenizer_config.json"];
    let card = "the card of the base";
    fs::write(model.join("README.md"), card).unwrap();
    for file in files.into_iter().chain(["README.md"]) {
        fs::hard_link(model.join(file), out.join(file)).unwrap();
    }
    command(&model, &data, &out, &["--steps 1 --overwrite"]).unwrap();
    for file in files {
        let base = fs::read(reference("llama").join(file)).unwrap();
        assert!(fs::read(model.join(file)).unwrap() == base, "{file}");
        assert!(fs::read(out.join(file)).unwrap() == base, "{file}");
    }
    assert_eq!(fs::read_to_string(model.join("README.md")).unwrap(), card);
}

#[test]
fn file_in_place_of_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let chats = "{\"text\": \"a chat\"}\n";
    fs::write(out.join("log.jsonl"), chats).unwrap();
    let error = command(&model, &data, &out, &["--steps 1"]).unwrap_err();
    assert!(format!("{error:#}").contains("is not a log"), "{error:#}");
    assert_eq!(fs::read_to_string(out.join("log.jsonl")).unwrap(), chats);
}

#[test]
fn changed_result_is_not_called_done() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    command(&model, &data, &out, &["--steps 1"]).unwrap();
    fs::write(out.join(weights::WEIGHTS), "changed").unwrap();
    let error = command(&model, &data, &out, &["--steps 1"]).unwrap_err();
    assert!(format!("{error:#}").contains("--overwrite"), "{error:#}");
    command(&model, &data, &out, &["--steps 1 --overwrite"]).unwrap();
    load(&out);
}
