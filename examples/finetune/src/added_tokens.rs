//! Settings of added tokens in `tokenizer_config.json` that `transformers` applies in place of those in `tokenizer.json`.

use anyhow::{Result, ensure};
use serde_json::Value as Json;
use tokenizers::Tokenizer;

use crate::print::say;

/// Warns of tokens whose settings in `config` are not those of the `tokenizer`, which this program uses.
///
/// # Errors
///
/// If special tokens in texts are not to be cut out as such.
pub fn check(tokenizer: &Tokenizer, config: &Json) -> Result<()> {
    ensure!(
        config["split_special_tokens"] != true,
        "`split_special_tokens` in tokenizer_config.json is true, which this program does not support: set it to false"
    );
    let differing = differing(tokenizer, config);
    if !differing.is_empty() {
        say!(
            "warning: tokenizer.json and tokenizer_config.json differ in the tokens {differing:?}, and this program reads the first: \
            load the tokenizer with `AutoTokenizer` of transformers and write it with `save_pretrained`"
        );
    }
    Ok(())
}

fn differing(tokenizer: &Tokenizer, config: &Json) -> Vec<String> {
    let known = tokenizer.get_added_tokens_decoder();
    let declared = config["added_tokens_decoder"].as_object();
    let mut differing = Vec::new();
    for (id, token) in declared.into_iter().flatten() {
        let found = id.parse().ok().and_then(|id| known.get(&id));
        let is_set = |name: &str| token[name] == true;
        let is_same = found.is_some_and(|found| {
            token["content"] == found.content.as_str()
                && is_set("lstrip") == found.lstrip
                && is_set("rstrip") == found.rstrip
                && is_set("single_word") == found.single_word
        });
        if !is_same {
            differing.push(token["content"].as_str().unwrap_or(id).to_owned());
        }
    }
    // It becomes an added token.
    let end = config["eos_token"]
        .as_str()
        .filter(|end| declared.is_none() && known.values().all(|known| known.content != *end));
    differing.extend(end.map(str::to_owned));
    differing
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::AddedToken;
    use tokenizers::models::bpe::BPE;

    use super::*;

    #[test]
    fn tokens_with_other_settings_are_found() {
        let mut tokenizer = Tokenizer::new(BPE::default());
        let end = AddedToken::from("</s>", true).rstrip(true);
        tokenizer.add_special_tokens(&[end]);
        let declared = |token: Json| json!({ "added_tokens_decoder": { "0": token } });
        for (config, expected) in [
            (json!({}), &[][..]),
            (
                declared(json!({"content": "</s>", "rstrip": true, "lstrip": false})),
                &[],
            ),
            (declared(json!({"content": "</s>"})), &["</s>"]),
            (
                declared(json!({"content": "<s>", "rstrip": true})),
                &["<s>"],
            ),
            (
                json!({"added_tokens_decoder": { "7": { "content": "<pad>" } }}),
                &["<pad>"],
            ),
            (json!({"eos_token": "</s>"}), &[]),
            (json!({"eos_token": "<end>"}), &["<end>"]),
        ] {
            assert_eq!(differing(&tokenizer, &config), expected, "{config}");
        }
        let config = json!({ "split_special_tokens": true });
        let error = check(&tokenizer, &config).unwrap_err().to_string();
        assert!(error.contains("set it to false"), "{error}");
    }
}
