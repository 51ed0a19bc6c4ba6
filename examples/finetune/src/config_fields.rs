//! Fields of configs: how they are read, and those that [`DecoderConfig`](crate::config::DecoderConfig) does not read.

use anyhow::{Result, anyhow, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

/// Reads a config. An error names the field.
pub fn read<T: DeserializeOwned>(value: Json) -> Result<T> {
    serde_path_to_error::deserialize(value).map_err(|error| match error.path().iter().next() {
        Some(_) => anyhow!(
            "`{}`: {}: correct or remove it",
            error.path(),
            error.inner()
        ),
        None => anyhow!("{}", error.inner()),
    })
}

/// Fields that change what some models compute or load, and the values with which they change nothing, in addition to `null`.
const COMPUTED: [(&str, &[&str]); 24] = [
    ("attention_multiplier", &["1.0", "1"]),
    ("attn_logit_softcapping", &[]),
    ("clip_qkv", &[]),
    ("embedding_multiplier", &["1.0", "1"]),
    ("final_logit_softcapping", &[]),
    ("is_causal", &["true"]),
    ("logit_scale", &["1.0", "1"]),
    ("logits_scaling", &["1.0", "1"]),
    ("no_rope_layers", &["[]"]),
    ("num_experts", &["0"]),
    ("num_local_experts", &["0"]),
    // Outside of the rope fields, where `transformers` prefers it to the one inside.
    ("original_max_position_embeddings", &[]),
    ("parallel_attn", &["false"]),
    ("partial_rotary_factor", &["1.0", "1"]),
    ("per_layer_config", &["{}"]),
    ("qk_layernorm", &["false"]),
    ("query_pre_attn_scalar", &[]),
    ("residual_multiplier", &["1.0", "1"]),
    ("rope_interleaved", &["false"]),
    // The name of the file that `transformers` loads.
    ("transformers_weights", &[]),
    ("use_bidirectional_attention", &["false"]),
    ("use_mrope", &["false"]),
    ("use_parallel_residual", &["false"]),
    ("use_qk_norm", &["false"]),
];

/// Fields that don't change what a model computes.
const WITHOUT_EFFECT: [&str; 29] = [
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Returns the fields of `config` that are neither `known` nor in a list of this file.
///
/// # Errors
///
/// If a field that is not `known` changes what the model computes.
pub fn unknown(config: &Json, known: &[&str]) -> Result<Vec<String>> {
    let fields = config.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, value)| !known.contains(&name.as_str()) && !value.is_null());
    let mut unknown = Vec::new();
    for (name, value) in fields {
        let computed = COMPUTED.iter().find(|(field, _)| field == name);
        if let Some((_, neutral)) = computed {
            let text = value.to_string();
            ensure!(
                neutral.contains(&text.as_str()),
                "`{name}` is {text}: this program does not support it"
            );
        } else if !WITHOUT_EFFECT.contains(&name.as_str()) {
            unknown.push(name.clone());
        }
    }
    Ok(unknown)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn field_that_changes_the_model_is_refused_by_name() {
        let config = json!({"a": 1, "use_cache": true, "use_mrope": false, "b": 2, "c": null});
        assert_eq!(unknown(&config, &["a"]).unwrap(), ["b"]);
        let config = json!({"final_logit_softcapping": 30.0});
        let error = unknown(&config, &[]).unwrap_err().to_string();
        assert!(
            error.contains("`final_logit_softcapping` is 30.0"),
            "{error}"
        );
    }
}
