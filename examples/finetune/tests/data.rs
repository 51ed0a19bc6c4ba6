//! Documents and rows of the data, on each reference model.

mod command;

use std::path::Path;

use anyhow::Result;
use burn::module::Module;
use burn::prelude::*;
use burn::tensor::FloatDType;
use clap::Parser;
use serde_json::{Value, json};

use command::{command, reference, text, write};
use finetune::config::DecoderConfig;
use finetune::data::Data;
use finetune::decoder::Decoder;
use finetune::options::Options;
use finetune::rows::Rows;
use finetune::step::mean_loss;
use finetune::tokens::{Encoded, Tokens};
use finetune::weights;

const MODELS: [&str; 5] = ["llama", "llama-tied", "mistral", "qwen2", "qwen3"];

fn tokens(folder: &Path) -> Tokens {
    Tokens::read(folder, &DecoderConfig::read(folder).unwrap()).unwrap()
}

/// Reads `files` as the data of a model.
fn data(model: &Path, files: &[&Path], more: &str) -> Result<Data> {
    let mut line = vec!["finetune".to_owned(), "--output=out".to_owned()];
    line.push(format!("--model={}", model.display()));
    let files = files
        .iter()
        .map(|file| format!("--data={}", file.display()));
    line.extend(files);
    line.extend(more.split_whitespace().map(String::from));
    let options = Options::try_parse_from(line)?;
    Data::read(&options, &DecoderConfig::read(model)?, &tokens(model))
}

/// The texts of all rows, and of the targets that count in them.
fn decoded(tokens: &Tokens, rows: &Rows) -> [String; 2] {
    let batch = rows.batch(&Vec::from_iter(0..rows.len()), &Device::flex());
    [batch.tokens, batch.targets].map(|all| {
        let all = all.into_data();
        let all = all.iter::<i64>().filter(|token| *token >= 0);
        tokens
            .decode(&Vec::from_iter(all.map(|it| it as u32)))
            .unwrap()
    })
}

#[test]
fn packed_loss_equals_that_of_each_document_alone() {
    for name in MODELS {
        let folder = reference(name);
        let config = DecoderConfig::read(&folder).unwrap();
        let decoder = Decoder::init(&config, true, &Device::flex().autodiff());
        let decoder = weights::load(decoder, &folder, FloatDType::F32, None).unwrap();
        let model = decoder.valid();
        let tokens = tokens(&folder);
        let document = |number: usize| {
            let text = format!("{number} documents attend to themselves. ").repeat(1 + number % 3);
            tokens.text(&text).unwrap()
        };
        let documents: Vec<Encoded> = (0..12).map(document).collect();
        let length = documents.iter().map(|it| it.tokens.len()).max().unwrap();
        let packed = Rows::packed(documents.clone(), length);
        let (alone, _) = Rows::padded(documents, length);
        assert!(packed.len() < alone.len(), "no row has two documents");
        let [packed, alone] = [packed, alone].map(|rows| {
            let batch = rows.batch(&Vec::from_iter(0..rows.len()), &Device::flex());
            (batch.counted, mean_loss(&model, [batch].into_iter()))
        });
        assert_eq!(packed.0, alone.0);
        let apart = (packed.1 - alone.1).abs() / alone.1;
        assert!(apart < 1e-5, "{name}: {packed:?}, {alone:?}");
    }
}

#[test]
fn files_are_read_or_refused_by_extension() {
    let folder = tempfile::tempdir().unwrap();
    let model = reference("llama");
    let lines = "{\"text\": \"one\"}\n\n{\"text\": \"two\"}\n";
    let list = "[\n{\"text\": \"one\"},\n{\"text\": \"two\"}]";
    let marked = format!("\u{feff}{lines}");
    let expected = "onetwo";
    for (file, content, result) in [
        ("a.jsonl", lines, Ok(expected)),
        ("a.JSONL", lines, Ok(expected)),
        ("a.ndjson", lines, Ok(expected)),
        ("a.json", lines, Ok(expected)),
        ("list.json", list, Ok(expected)),
        ("mark.jsonl", &marked, Ok(expected)),
        ("mark.txt", "\u{feff}one", Ok("one")),
        ("a.md", "# one", Ok("# one")),
        ("brace.txt", "{one}", Ok("{one}")),
        ("a.txt", lines, Err("a.txt contains JSON: rename it")),
        ("list.txt", list, Err("list.txt contains JSON")),
        ("a.jsonl.txt", lines, Err("a.jsonl.txt contains JSON")),
        (
            "a.csv",
            "text\none",
            Err("a.csv has an extension that is not read"),
        ),
        (
            "a.parquet",
            "PAR1",
            Err("use `.txt` or `.md` for a text, `.jsonl`"),
        ),
        ("a", "one", Err("has an extension that is not read")),
        (
            "id.jsonl",
            "{\"text\": \"one\"}\n{\"text\": \"two\", \"id\": 1}",
            Err("id.jsonl:2: the field `id`"),
        ),
        (
            "id.json",
            "[{\"text\": \"one\", \"id\": 1}]",
            Err("id.json, entry 1: the field `id`"),
        ),
        (
            "bad.json",
            "[{\"text\": \"one\"}",
            Err("bad.json is not JSON: write a list"),
        ),
    ] {
        let path = write(folder.path(), file, content);
        let found = data(&model, &[&path], "--length 16 --held-out 0 --pad");
        match (found, result) {
            (Ok(data), Ok(expected)) => {
                let [text, _] = decoded(&tokens(&model), &data.rows);
                assert_eq!(text, expected, "{file}");
            }
            (Err(error), Err(words)) => {
                let error = format!("{error:#}");
                assert!(error.contains(words), "{file}: {error}");
            }
            (found, _) => panic!("{file}: {found:?}"),
        }
    }
}

#[test]
fn several_files_are_read_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let model = reference("qwen2");
    let files = [
        write(folder.path(), "a.txt", "first "),
        write(folder.path(), "b.jsonl", "{\"text\": \"second \"}"),
    ];
    let data = data(
        &model,
        &[&files[0], &files[1]],
        "--length 16 --held-out 0 --pad",
    )
    .unwrap();
    let [text, _] = decoded(&tokens(&model), &data.rows);
    assert_eq!(text, "second first ");
}

#[test]
fn held_out_documents_are_in_no_trained_row() {
    let folder = tempfile::tempdir().unwrap();
    let line = |number: usize| json!({"text": format!("<{number}>").repeat(1 + number % 9)});
    let lines: String = (100..200)
        .map(|number| line(number).to_string() + "\n")
        .collect();
    let lines = write(folder.path(), "lines.jsonl", &lines);
    for name in MODELS {
        let model = reference(name);
        let all = ["--seed 1", "--seed 2"].map(|seed| {
            let options = format!("{seed} --length 40 --held-out 0.2");
            let data = data(&model, &[&lines], &options).unwrap();
            let tokens = tokens(&model);
            let [trained, _] = decoded(&tokens, &data.rows);
            let [held_out, _] = decoded(&tokens, &data.held_out);
            let is_in = |text: &str, number: &usize| text.contains(&format!("<{number}>"));
            let drawn: Vec<usize> = (100..200).filter(|it| is_in(&held_out, it)).collect();
            assert!((100..200).all(|it| is_in(&trained, &it) != drawn.contains(&it)));
            assert_eq!(drawn.len(), 20, "{name}");
            drawn
        });
        assert_ne!(all[0], all[1]);
    }
}

#[test]
fn end_of_text_counts_after_texts_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    for name in MODELS {
        let model = reference(name);
        let end = tokens(&model).end().map(i64::from).unwrap();
        for line in [
            json!({"text": "yes"}),
            json!({"prompt": "yes", "completion": "no"}),
        ] {
            let file = write(folder.path(), "data.jsonl", &line.to_string());
            let data = data(&model, &[&file], "--length 32 --held-out 0").unwrap();
            let targets = data.rows.batch(&[0], &Device::flex()).targets.into_data();
            let counted: Vec<i64> = targets.iter().filter(|token| *token >= 0).collect();
            assert_eq!(counted.last(), Some(&end), "{name}: {line}");
        }
    }
}

#[test]
fn answers_and_completions_count() {
    let folder = tempfile::tempdir().unwrap();
    let chat = |answers: [Value; 2]| {
        let [first, second] = answers;
        let question = json!({"role": "user", "content": "Why?"});
        json!({"messages": [question, first, question, second]})
    };
    let answer = |text: &str| json!({"role": "assistant", "content": text});
    let mut bad = answer("bad");
    bad["weight"] = json!(0);
    for name in MODELS {
        let model = reference(name);
        for (line, expected) in [
            (chat([answer("one"), answer("two")]), "one\ntwo\n"),
            (chat([bad.clone(), answer("two")]), "two\n"),
            (json!({"prompt": "Why? ", "completion": "So."}), "So."),
            (json!({"instruction": "Why?", "output": "So."}), "So.\n"),
            (json!({"text": "all of it"}), "all of it"),
            // One token begins in the prompt and ends in the answer.
            (json!({"prompt": "a m", "completion": "odel"}), " model"),
        ] {
            let file = write(folder.path(), "line.jsonl", &line.to_string());
            for more in ["", "--pad"] {
                let data = data(&model, &[&file], more).unwrap();
                let [_, counted] = decoded(&tokens(&model), &data.rows);
                assert_eq!(counted, expected, "{name}, {line}");
            }
        }
    }
}

#[test]
fn documents_without_answer_in_row_are_refused_with_length() {
    let folder = tempfile::tempdir().unwrap();
    let line = json!({
        "messages": [
            {"role": "user", "content": "long ".repeat(50)},
            {"role": "assistant", "content": "short"}
        ]
    });
    let file = write(folder.path(), "long.jsonl", &line.to_string());
    let error = data(&reference("llama"), &[&file], "--pad --length 32")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("in its first 32 tokens: raise `--length`"),
        "{error}"
    );
}

#[test]
fn validation_file_is_held_out_instead_of_documents() {
    let folder = tempfile::tempdir().unwrap();
    let model = reference("mistral");
    let file = text(folder.path());
    let other = write(folder.path(), "other.txt", "another text");
    let more = format!("--length 16 --validation {}", other.display());
    let data = data(&model, &[&file], &more).unwrap();
    let [held_out, _] = decoded(&tokens(&model), &data.held_out);
    assert_eq!(held_out, "another text");
    let all = self::data(&model, &[&file], "--length 16 --held-out 0").unwrap();
    assert_eq!(all.rows.checksum(), data.rows.checksum());
}

#[test]
fn dry_run_trains_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (text(folder.path()), folder.path().join("out"));
    for options in ["--method full", "--method qlora4", "--fit 40MB"] {
        let more = format!("--dry-run {options}");
        assert_eq!(
            command(&reference("qwen3"), &file, &out, &[&more]).unwrap(),
            0
        );
        assert!(!out.exists());
    }
}
