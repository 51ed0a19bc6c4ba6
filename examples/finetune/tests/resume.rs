//! Trainings that are resumed, and those that must not be.

mod command;

use std::fs;
use std::path::Path;

use command::{command, copy, text};

/// Changes one byte of a file, which keeps its length.
fn change(file: &Path, place: usize, from: u8, to: u8) {
    let mut bytes = fs::read(file).unwrap();
    let place = place
        + bytes[place..]
            .iter()
            .position(|byte| *byte == from)
            .unwrap();
    bytes[place] = to;
    fs::write(file, bytes).unwrap();
}

/// Returns the steps of the checkpoints in a folder.
fn checkpoints(folder: &Path) -> Vec<usize> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let steps = names.filter_map(|name| name.strip_prefix("step-")?.parse().ok());
    let mut steps: Vec<usize> = steps.collect();
    steps.sort_unstable();
    steps
}

#[test]
fn changed_method_is_refused_before_its_default_rate() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    command(&model, &data, &out, &["--method lora --steps 4 --stop 2"]).unwrap();
    let error = command(&model, &data, &out, &["--method full --steps 4"]).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("`--method` was"), "{error}");
}

#[test]
fn changed_file_or_option_is_refused_by_name() {
    type Change = fn(&Path, &Path);
    let changes: [(Change, &str, &str); 8] = [
        (
            |model, _| {
                let file = model.join("model.safetensors");
                let length = fs::metadata(&file).unwrap().len() as usize;
                let byte = fs::read(&file).unwrap()[length - 1];
                change(&file, length - 1, byte, byte ^ 0x80);
            },
            "",
            "--model, model.safetensors",
        ),
        (
            |model, _| {
                let file = model.join("config.json");
                fs::write(&file, fs::read_to_string(&file).unwrap() + "\n").unwrap();
            },
            "",
            "--model, config.json",
        ),
        (
            |model, _| {
                let file = model.join("tokenizer.json");
                fs::write(&file, fs::read_to_string(&file).unwrap() + "\n").unwrap();
            },
            "",
            "--model, tokenizer.json",
        ),
        (|_, data| change(data, 20, b'0', b'7'), "", "--data"),
        (|_, _| {}, "--length 8", "--length"),
        (|_, _| {}, "--rank 4", "--rank"),
        (|_, _| {}, "--weight-decay 0.5", "--weight-decay"),
        (|_, _| {}, "--steps 3", "--steps"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (index, (change, option, words)) in changes.into_iter().enumerate() {
        let folder = folder.path().join(index.to_string());
        fs::create_dir_all(&folder).unwrap();
        let (model, data) = (copy("llama", &folder), text(&folder));
        let out = folder.join("out");
        let options = "--method lora --steps 4";
        command(&model, &data, &out, &[options, "--stop 2"]).unwrap();
        change(&model, &data);
        let more: Vec<&str> = option.split(' ').filter(|it| !it.is_empty()).collect();
        let error = command(&model, &data, &out, &[&[options], &more[..]].concat()).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains(words) && error.contains("another training"),
            "{words}: {error}"
        );
    }
}

#[test]
fn finished_training_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    let train = |options: &str| command(&model, &data, &out, &[options]).unwrap();
    assert_eq!(train("--steps 3"), 3);
    let card = out.join("README.md");
    fs::write(&card, "edited").unwrap();
    let written = |name: &str| fs::metadata(out.join(name)).unwrap().modified().unwrap();
    let before = ["model.safetensors", "log.jsonl", "finetune.json"].map(written);
    assert_eq!(train("--steps 3"), 3);
    assert_eq!(fs::read_to_string(&card).unwrap(), "edited");
    assert_eq!(
        ["model.safetensors", "log.jsonl", "finetune.json"].map(written),
        before
    );
    // More steps continue after the last one.
    let error = command(&model, &data, &out, &["--steps 5"]).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("changed since: README.md"), "{error}");
    assert_eq!(train("--steps 5 --overwrite"), 5);
    let log = fs::read_to_string(out.join("log.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 5);
    assert!(written("model.safetensors") > before[0]);
}

#[test]
fn finished_training_is_written_in_another_type() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    command(&model, &data, &out, &["--steps 3"]).unwrap();
    let file = out.join("model.safetensors");
    let size = fs::metadata(&file).unwrap().len();
    command(&model, &data, &out, &["--steps 3 --dtype bf16"]).unwrap();
    let half = fs::metadata(&file).unwrap().len();
    assert!(half < size * 6 / 10, "{half} of {size}");
    let log = fs::read_to_string(out.join("log.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 3);
}

#[test]
fn damaged_checkpoint_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    let options = "--steps 4 --save-every 1";
    command(&model, &data, &out, &[options, "--stop 2"]).unwrap();
    let file = out.join("checkpoints/step-2/model.bpk");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 9]).unwrap();
    let error = command(&model, &data, &out, &[options, "--keep-last 1"]).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("Remove its folder") && !error.contains("Checkpoint::"),
        "{error}"
    );
    assert_eq!(checkpoints(&out.join("checkpoints")), [1, 2]);
}

/// If the disk is full, the next checkpoint needs their room.
#[test]
fn older_checkpoints_are_removed_before_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    let options = "--steps 6 --save-every 1 --stop 4 --keep-last";
    for (count, expected) in [(3, vec![2, 3, 4]), (2, vec![3, 4]), (1, vec![4])] {
        let options = format!("{options} {count}");
        assert_eq!(command(&model, &data, &out, &[&options]).unwrap(), 4);
        assert_eq!(checkpoints(&out.join("checkpoints")), expected);
    }
}

#[test]
fn adapters_are_trained_further() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let start = format!("--method qlora8 --rank 4 --adapters {}", first.display());
    command(
        &model,
        &data,
        &first,
        &["--method qlora8 --rank 4 --steps 6"],
    )
    .unwrap();
    command(&model, &data, &second, &[&start, "--steps 1"]).unwrap();
    let losses = [(&first, "after"), (&second, "before")].map(|(folder, when)| {
        let card = fs::read_to_string(folder.join("README.md")).unwrap();
        let row = format!("| held-out loss {when} | ");
        card.split(&row).nth(1).unwrap()[..6].to_owned()
    });
    assert_eq!(losses[0], losses[1]);
    let other = folder.path().join("other");
    for (option, words) in [
        ("--rank 8", "use `--rank 4`"),
        ("--targets q_proj", "use `--targets down_proj,"),
    ] {
        let error = command(&model, &data, &other, &[&start, option]).unwrap_err();
        assert!(format!("{error:#}").contains(words), "{error:#}");
    }
    let config = first.join("adapter_config.json");
    let text = fs::read_to_string(&config).unwrap();
    for (field, value) in [
        ("bias", "\"all\""),
        ("use_dora", "true"),
        ("use_rslora", "true"),
        ("use_qalora", "true"),
        ("init_lora_weights", "\"pissa\""),
        ("layers_to_transform", "[0]"),
        ("modules_to_save", "[\"lm_head\"]"),
        ("rank_pattern", "{\"q_proj\": 2}"),
        ("alpha_pattern", "{\"q_proj\": 2}"),
        ("trainable_token_indices", "[1]"),
        ("a_later_setting", "1"),
    ] {
        let bias = "\"bias\": \"none\",";
        let text = match field {
            "bias" => text.replace("\"none\"", value),
            _ => text.replace(bias, &format!("{bias} \"{field}\": {value},")),
        };
        fs::write(&config, text).unwrap();
        let error = command(&model, &data, &other, &[&start]).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(&format!("`{field}` in")), "{error}");
    }
}

#[test]
fn order_of_targets_has_no_effect() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    let train = |options: &str| command(&model, &data, &out, &["--method lora", options]);
    train("--targets v_proj,q_proj --steps 2 --stop 1").unwrap();
    assert_eq!(train("--targets q_proj,v_proj --steps 2").unwrap(), 2);
}

#[test]
fn checkpoint_of_another_text_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    command(&model, &data, &out, &["--steps 4 --stop 2"]).unwrap();
    change(&data, 20, b'0', b'7');
    let error = command(&model, &data, &out, &["--steps 4 --overwrite"]).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("or remove the folder"), "{error}");
    assert!(out.join("checkpoints/step-2").is_dir());
}

#[test]
fn best_checkpoint_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    // With this rate the loss soon rises.
    let options = "--learning-rate 0.03 --epochs 20 --save-every 2 --patience 3";
    let train = |more: &[&str]| {
        let made = command(&model, &data, &out, &[&[options], more].concat()).unwrap();
        let card = fs::read_to_string(out.join("README.md")).unwrap();
        let number = |row: &str| {
            let rest = card.split(&format!("| {row} | ")).nth(1).unwrap();
            rest.split(' ').next().unwrap().parse::<f64>().unwrap()
        };
        let steps = number("steps") as usize;
        (made, steps, number("held-out loss after"))
    };
    let (ended, written, best) = train(&["--keep-best"]);
    assert_eq!(checkpoints(&out.join("checkpoints/best")), [written]);
    // The last weights, without another step.
    let (made, written, last) = train(&[]);
    assert_eq!((made, written), (ended, ended));
    let steps = fs::read_to_string(out.join("log.jsonl"))
        .unwrap()
        .lines()
        .count();
    assert_eq!(made, steps);
    assert!(best < last, "{made} steps, {best}, {last}");
    // With more patience the training continues.
    let more = options.replace("--patience 3", "--patience 4");
    let more = command(&model, &data, &out, &[&more]).unwrap();
    assert!(more > ended, "{more} steps");
}

/// Only the steps at which it saves by itself decide, not those at which it is stopped.
#[test]
fn training_stopped_between_saves_ends_with_same_best() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    // With this rate the loss soon rises.
    let options = "--learning-rate 0.03 --epochs 20 --save-every 4 --patience 2 --keep-best";
    let train = |out: &Path, more: &[&str]| {
        let made = command(&model, &data, out, &[&[options], more].concat()).unwrap();
        (made, fs::read(out.join("model.safetensors")).ok())
    };
    let whole = train(&folder.path().join("whole"), &[]);
    let out = folder.path().join("parts");
    for stop in (1..whole.0).filter(|step| step % 4 != 0) {
        train(&out, &[&format!("--stop {stop}")]);
    }
    assert!(train(&out, &[]) == whole, "the weights differ");
}

#[test]
fn best_checkpoint_of_another_training_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    let options = "--epochs 20 --save-every 2 --keep-best";
    command(&model, &data, &out, &[options, "--stop 2"]).unwrap();
    fs::remove_dir_all(out.join("checkpoints/step-2")).unwrap();
    let best = out.join("checkpoints/best/step-2");
    let error = command(&model, &data, &out, &[options, "--seed 7"]).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("has none to resume from"), "{error}");
    assert!(best.is_dir());
    command(&model, &data, &out, &["--epochs 20 --seed 7", "--stop 2"]).unwrap();
    assert!(best.is_dir());
    let error = command(&model, &data, &out, &[options, "--seed 7"]).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("`--seed` was 42 and is 7"), "{error}");
    assert!(best.is_dir());
}

/// The program was killed after the checkpoint with the lowest loss was written, and before it was saved as the best one.
#[test]
fn best_checkpoint_is_saved_again_after_kill() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (copy("llama", folder.path()), text(folder.path()));
    let out = folder.path().join("out");
    let best = out.join("checkpoints/best");
    let options = "--learning-rate 1e-3 --epochs 20 --save-every 2 --keep-best";
    let run = |stop: &str| command(&model, &data, &out, &[options, stop]).unwrap();
    run("--stop 2");
    let earlier = folder.path().join("earlier");
    fs::rename(&best, &earlier).unwrap();
    run("--stop 4");
    assert!(best.join("step-4").is_dir());
    fs::remove_dir_all(&best).unwrap();
    fs::rename(&earlier, &best).unwrap();
    run("--stop 4");
    assert!(best.join("step-4").is_dir());
    // A user removes the last checkpoint: its step is trained again.
    fs::remove_dir_all(out.join("checkpoints/step-4")).unwrap();
    run("--stop 2");
    assert_eq!(checkpoints(&best), [2]);
}
