//! Tokens of texts and chats, on each reference model.

mod command;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tokenizers::normalizer::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use command::{command, copy, reference, text};
use finetune::config::DecoderConfig;
use finetune::tokens::{Encoded, Tokens};

const MODELS: [&str; 5] = ["llama", "llama-tied", "mistral", "qwen2", "qwen3"];

fn tokens(folder: &Path) -> Tokens {
    Tokens::read(folder, &DecoderConfig::read(folder).unwrap()).unwrap()
}

/// Changes a file of JSON in a folder, which may lack it.
fn edit(folder: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let file = folder.join(file);
    let mut value = match fs::read(&file) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap(),
        Err(_) => json!({}),
    };
    change(&mut value);
    fs::write(&file, value.to_string()).unwrap();
}

fn chat(question: &str, answer: &str) -> [Value; 2] {
    [
        json!({"role": "user", "content": question}),
        json!({"role": "assistant", "content": answer}),
    ]
}

/// The text of the tokens that count.
fn counted(tokens: &Tokens, document: &Encoded) -> String {
    let all = document.tokens.iter().zip(&document.counted);
    let counted = all.filter(|(_, counted)| **counted);
    let counted: Vec<u32> = counted.map(|(token, _)| *token).collect();
    tokens.decode(&counted).unwrap()
}

#[test]
fn truncation_and_padding_of_tokenizer_have_no_effect() {
    for model in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let model = copy(model, folder.path());
        let text = "The model learns to answer. ".repeat(20);
        let expected = tokens(&model).text(&text).unwrap();
        edit(&model, "tokenizer.json", |tokenizer| {
            tokenizer["truncation"] = json!({"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0});
            tokenizer["padding"] = json!({
                "strategy": {"Fixed": 2048}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 1, "pad_type_id": 0,
                "pad_token": "</s>"
            });
        });
        let limited = tokens(&model);
        assert_eq!(limited.text(&text).unwrap(), expected);
        let document = limited.chat(&chat("?", &text)).unwrap();
        assert_eq!(counted(&limited, &document).trim(), text.trim());
    }
}

#[test]
fn trimmed_offsets_leave_mask_unchanged() {
    for model in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let model = copy(model, folder.path());
        let code = "if x:\n        return 1\n\n    else:\n\treturn  2";
        let masks = [false, true].map(|trims| {
            edit(&model, "tokenizer.json", |tokenizer| {
                tokenizer["post_processor"]["processors"][0]["trim_offsets"] = json!(trims);
            });
            let tokens = tokens(&model);
            let document = tokens.chat(&chat("code", code)).unwrap();
            assert_eq!(counted(&tokens, &document).trim(), code);
            document
        });
        assert_eq!(masks[0], masks[1]);
    }
}

#[test]
fn special_tokens_map_is_read_as_in_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let expected = tokens(&reference("llama")).chat(&chat("a", "b")).unwrap();
    for (config, map, is_expected) in [
        (
            json!({}),
            json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}}),
            true,
        ),
        // The map has priority.
        (
            json!({"bos_token": "<s>", "eos_token": "<s>"}),
            json!({"eos_token": "</s>"}),
            true,
        ),
        // With `added_tokens_decoder` the map is not read.
        (
            json!({"bos_token": "<s>", "added_tokens_decoder": {}}),
            json!({"eos_token": "</s>"}),
            false,
        ),
    ] {
        let model = copy("llama", folder.path());
        fs::write(model.join("tokenizer_config.json"), config.to_string()).unwrap();
        fs::write(model.join("special_tokens_map.json"), map.to_string()).unwrap();
        let found = tokens(&model).chat(&chat("a", "b"));
        let equals = found.is_ok_and(|found| found == expected);
        assert_eq!(equals, is_expected, "{config}, {map}");
    }
}

#[test]
fn prompt_of_chats_is_written_by_template() {
    for name in MODELS {
        let model = reference(name);
        let tokens = tokens(&model);
        let expected = fs::read(model.join("expected.text.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let chat = expected["chat"]["messages"].as_array().unwrap();
        let (question, chat) = (
            chat[0]["content"].as_str().unwrap(),
            tokens.chat(chat).unwrap(),
        );
        let prompt = tokens.prompt(question, true).unwrap();
        // All before the answer.
        let answer = chat.counted.iter().position(|counted| *counted).unwrap();
        assert_eq!(prompt, chat.tokens[..answer]);
        let plain = tokens.prompt(question, false).unwrap();
        assert_eq!(plain, tokens.encode(question).unwrap());
    }
}

#[test]
fn prompt_without_token_is_refused_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let model = copy("llama", folder.path());
    let data = text(folder.path());
    let out = folder.path().join("out");
    // With a token at the beginning of a text an empty prompt is one.
    command(&model, &data, &out, &["--steps 1 --prompt="]).unwrap();
    edit(&model, "tokenizer.json", |tokenizer| {
        tokenizer["post_processor"] = Value::Null
    });
    let out = folder.path().join("other");
    let error = command(&model, &data, &out, &["--steps 1 --prompt="]).unwrap_err();
    assert!(
        format!("{error:#}").contains("`--prompt` has no token"),
        "{error:#}"
    );
    assert!(!out.exists());
}

/// The post-processor of `tokenizer.json` sets them, as in `transformers` 5.
#[test]
fn tokenizer_config_leaves_tokens_around_texts_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let model = copy("llama", folder.path());
    let expected = tokens(&model).encode("The model").unwrap();
    for is_set in [false, true] {
        edit(&model, "tokenizer_config.json", |config| {
            config["add_bos_token"] = json!(is_set);
            config["add_eos_token"] = json!(is_set);
        });
        assert_eq!(tokens(&model).encode("The model").unwrap(), expected);
    }
}

/// A template of chats on a model that ends its texts with another token.
#[test]
fn chat_without_end_token_of_model_has_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let model = copy("llama", folder.path());
    let has_end = || {
        let tokens = tokens(&model);
        tokens.has_end(&tokens.chat(&chat("a", "b")).unwrap())
    };
    let template = model.join("chat_template.jinja");
    let written = fs::read_to_string(&template).unwrap();
    fs::write(&template, written.replace("eos_token", "'</s>'")).unwrap();
    assert!(has_end());
    edit(&model, "tokenizer_config.json", |config| {
        config["eos_token"] = json!("<s>")
    });
    edit(&model, "config.json", |config| {
        config["eos_token_id"] = json!(0)
    });
    // The beginning of the text does not count.
    assert!(!has_end());
    edit(&model, "generation_config.json", |config| {
        config["eos_token_id"] = json!([0, 1])
    });
    assert!(has_end());
}

#[test]
fn answers_without_special_token_have_no_end() {
    let folder = tempfile::tempdir().unwrap();
    for (end, has_end) in [("eos_token", true), ("'|'", false)] {
        let model = copy("llama", folder.path());
        let template = format!(
            "{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content + {end} }}}}{{% endfor %}}"
        );
        fs::write(model.join("chat_template.jinja"), template).unwrap();
        let tokens = tokens(&model);
        let document = tokens.chat(&chat("a", "b")).unwrap();
        assert_eq!(tokens.has_end(&document), has_end, "{end}");
    }
}

/// Other engines split these texts in other places.
#[test]
fn regular_expressions_are_those_of_oniguruma() {
    for (pattern, text, expected) in [
        (r"\w+|\W", "x²y", &["x²y"][..]),
        (r"\p{N}{1,3}+", "12345678", &["12345678"]),
        (r"[[:punct:]]+", "$+<", &["$+<"]),
        (r"\s+$|\S+|\s+", "a  \nb", &["a", "  ", "\n", "b"]),
    ] {
        let pattern = SplitPattern::Regex(pattern.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
        let mut pieces = PreTokenizedString::from(text);
        split.pre_tokenize(&mut pieces).unwrap();
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let pieces: Vec<&str> = pieces.iter().map(|(piece, ..)| *piece).collect();
        assert_eq!(pieces, expected);
    }
}
