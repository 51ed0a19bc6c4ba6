//! Adapters in the files of `peft` that a training starts from.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value as Json;

use crate::adapters::{self, Adapters};
use crate::config_fields;
use crate::header;

/// Settings of `adapter_config.json` that don't change what the adapters compute.
const WITHOUT_EFFECT: [&str; 12] = [
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "target_modules",
    "task_type",
];

/// The values of other settings that change nothing, in addition to `null`, false, and an empty list or object.
const NEUTRAL: [(&str, &str); 5] = [
    ("peft_type", "\"LORA\""),
    ("bias", "\"none\""),
    ("init_lora_weights", "true"),
    ("init_lora_weights", "\"gaussian\""),
    ("init_lora_weights", "\"orthogonal\""),
];

#[derive(Deserialize)]
struct Written {
    r: usize,
    lora_alpha: f64,
    target_modules: Json,
}

/// Returns an error unless the files in `folder` have `adapters` for all of these layers.
pub fn check(folder: &Path, adapters: &Adapters, layers: usize) -> Result<()> {
    let file = folder.join(adapters::CONFIG);
    let name = file.display();
    let text = std::fs::read(&file)
        .with_context(|| format!("{name} can't be read: `--adapters` is a folder of `peft`"))?;
    let value: Json = serde_json::from_slice(&text).with_context(|| name.to_string())?;
    for (field, value) in value.as_object().into_iter().flatten() {
        let text = value.to_string();
        let is_neutral = ["null", "false", "[]", "{}"].contains(&text.as_str())
            || NEUTRAL.contains(&(field, &text))
            || WITHOUT_EFFECT.contains(&field.as_str());
        ensure!(
            is_neutral,
            "`{field}` in {name} is {text}: this program has no such adapters. Pass plain LoRA adapters, or omit `--adapters`"
        );
    }
    let written: Written = config_fields::read(value).with_context(|| name.to_string())?;
    let written_targets = targets(&written.target_modules).with_context(|| {
        format!(
            "`target_modules` in {name} is the regular expression {}, and this program reads a list of names: write the list into `{}`",
            written.target_modules,
            adapters::CONFIG
        )
    })?;
    ensure!(
        !written_targets.is_empty(),
        "`target_modules` in {name} names no layer: use other adapters"
    );
    let is_other = |name: &&String| !adapters::TARGETS.contains(&name.as_str());
    if let Some(other) = written_targets.iter().find(is_other) {
        bail!(
            "`target_modules` in {name} names {other}, and this program has adapters on {}: use other adapters",
            adapters::TARGETS.join(", ")
        );
    }
    for (option, found, asked) in [
        ("rank", written.r.to_string(), adapters.rank.to_string()),
        (
            "alpha",
            written.lora_alpha.to_string(),
            adapters.alpha.to_string(),
        ),
        (
            "targets",
            written_targets.join(","),
            sorted(&adapters.targets).join(","),
        ),
    ] {
        ensure!(
            found == asked,
            "`--{option}` is {asked}, and the adapters in {} have {found}: use `--{option} {found}`",
            folder.display()
        );
    }
    check_tensors(folder, adapters, layers)
}

/// Returns an error unless the file has both factors of each adapter, and nothing else.
fn check_tensors(folder: &Path, adapters: &Adapters, layers: usize) -> Result<()> {
    let file = folder.join(adapters::WEIGHTS);
    let found = header::read(&file).with_context(|| file.display().to_string())?;
    for (name, entry) in &found {
        ensure!(
            entry.is_finite()?,
            "`{name}` in {} has a number that is not finite: use other adapters",
            file.display()
        );
    }
    let found: BTreeSet<String> = found.into_keys().collect();
    let expected: BTreeSet<String> = (0..layers)
        .flat_map(|layer| adapters.names(layer))
        .collect();
    for (name, state) in [
        (expected.difference(&found).next(), "missing"),
        (found.difference(&expected).next(), "not used"),
    ] {
        ensure!(
            name.is_none(),
            "`{}` is {state} in {}: use adapters of this model",
            name.map_or("", String::as_str),
            file.display()
        );
    }
    Ok(())
}

/// Returns the layers that have adapters, sorted. `None` for a regular expression.
fn targets(written: &Json) -> Option<Vec<String>> {
    let all = adapters::TARGETS;
    match written {
        Json::String(one) if one == "all-linear" => Some(sorted(&all.map(String::from))),
        Json::String(one) => all.contains(&one.as_str()).then(|| vec![one.clone()]),
        list => {
            let names = list.as_array().into_iter().flatten();
            let names = names.filter_map(|name| name.as_str().map(String::from));
            Some(sorted(&names.collect::<Vec<_>>()))
        }
    }
}

fn sorted(names: &[String]) -> Vec<String> {
    let mut names = names.to_vec();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_of_targets_is_one_name_or_all() {
        let names = |written: Json| targets(&written).map(|names| names.join(","));
        assert_eq!(names(json!("q_proj")).as_deref(), Some("q_proj"));
        assert_eq!(
            names(json!(["v_proj", "q_proj"])),
            names(json!(["q_proj", "v_proj"]))
        );
        assert_eq!(names(json!("all-linear")), names(json!(adapters::TARGETS)));
    }

    #[test]
    fn targets_of_other_adapters_are_refused() {
        for (written, words) in [
            (
                json!(r".*\.q_proj"),
                "write the list into `adapter_config.json`",
            ),
            (json!(["q_proj", "lm_head"]), "names lm_head"),
            (json!([]), "names no layer"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let config = json!({"r": 8, "lora_alpha": 16, "target_modules": written});
            std::fs::write(folder.path().join(adapters::CONFIG), config.to_string()).unwrap();
            let adapters = Adapters {
                rank: 8,
                alpha: 16.0,
                targets: vec!["q_proj".to_owned()],
            };
            let error = check(folder.path(), &adapters, 1).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
