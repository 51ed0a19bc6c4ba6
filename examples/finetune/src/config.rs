//! The config of a model, in the formats of `transformers` 4 and 5.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::config_fields;
use crate::print::say;
use crate::rope::{Rope, WrittenRope};

/// The largest size of a dimension.
const MAX_SIZE: usize = 1 << 24;

/// The most layers, and the most elements of a head.
const MAX_LAYERS: usize = 1 << 12;

/// A decoder's config, without defaults that depend on the architecture.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    pub vocabulary: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    pub key_value_heads: usize,
    pub head_dim: usize,
    pub epsilon: f64,
    pub rope: Rope,
    /// The sliding window of each layer, the token itself included.
    pub windows: Vec<Option<usize>>,
    pub query_key_value_bias: bool,
    pub output_bias: bool,
    pub mlp_bias: bool,
    pub query_key_norm: bool,
    pub tied: bool,
    /// The most tokens that the model was made for.
    pub max_length: usize,
    /// Tokens at the end of a text.
    pub end_of_text: Vec<u32>,
}

/// Fields of [`Written`].
const READ: [&str; 25] = [
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "attention_dropout",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "quantization_config",
    "pretraining_tp",
    "eos_token_id",
];

#[derive(Deserialize)]
struct Written {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: Option<String>,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    attention_dropout: Option<f64>,
    /// `Some(None)` if it is `null`, which differs from missing.
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<usize>>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    rope_theta: Option<f64>,
    rope_scaling: Option<WrittenRope>,
    rope_parameters: Option<WrittenRope>,
    quantization_config: Option<serde_json::Value>,
    pretraining_tp: Option<usize>,
    eos_token_id: Option<EndOfText>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected the number of a token, or a list of them"
)]
enum EndOfText {
    One(u32),
    Several(Vec<u32>),
}

fn present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl DecoderConfig {
    /// Reads `config.json` in `folder`.
    ///
    /// # Errors
    ///
    /// If it has an option that this decoder does not compute: the error names it.
    pub fn read(folder: &Path) -> Result<Self> {
        let file = folder.join("config.json");
        let text = std::fs::read_to_string(&file).with_context(|| {
            format!(
                "{} can't be read: `--model` is a folder as `save_pretrained` writes it",
                file.display()
            )
        })?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        // The type first: configs of other types have other fields.
        let value: serde_json::Value = serde_json::from_str(text)?;
        let kind = value["model_type"].as_str().unwrap_or("missing").to_owned();
        ensure!(
            ["llama", "mistral", "qwen2", "qwen3"].contains(&kind.as_str()),
            "`model_type` is {kind}: this program trains llama, mistral, qwen2 and qwen3"
        );
        let unknown = config_fields::unknown(&value, &READ)?;
        if !unknown.is_empty() {
            say!(
                "warning: this program does not read these fields of the config: {}",
                unknown.join(", ")
            );
        }
        let written: Written = config_fields::read(value)?;
        written.check()?;
        let heads = written.num_attention_heads;
        let key_value_heads = match (written.num_key_value_heads, kind.as_str()) {
            (Some(number), _) => number,
            (None, "llama") => heads,
            (None, _) => bail!("`num_key_value_heads` is missing or null: add it"),
        };
        ensure!(
            key_value_heads > 0 && heads.is_multiple_of(key_value_heads),
            "`num_attention_heads` is {heads}, which is not a multiple of `num_key_value_heads`, {key_value_heads}"
        );
        let head_dim = match (written.head_dim, kind.as_str()) {
            (Some(number), _) => number,
            (None, "qwen3") => 128,
            (None, _) => written.hidden_size / heads,
        };
        ensure!(
            (1..=MAX_LAYERS).contains(&head_dim) && head_dim.is_multiple_of(2),
            "`head_dim` is {head_dim}: it must be even, and from 2 to {MAX_LAYERS}"
        );
        // Both versions of `transformers` prefer the old field, unless it is empty.
        let rope = written.rope_scaling.as_ref();
        let rope = rope.filter(|rope| **rope != WrittenRope::default());
        let rope = rope.or(written.rope_parameters.as_ref());
        let theta = rope.and_then(|rope| rope.rope_theta);
        let theta = theta.or(written.rope_theta).unwrap_or(10_000.0);
        ensure!(
            theta > 1.0 && theta.is_finite(),
            "`rope_theta` is {theta}: it must be more than 1"
        );
        let rope = Rope::new(rope, theta, head_dim, written.max_position_embeddings)?;
        let bias = written.attention_bias && matches!(kind.as_str(), "llama" | "qwen3");
        Ok(Self {
            vocabulary: written.vocab_size,
            hidden: written.hidden_size,
            intermediate: written.intermediate_size,
            heads,
            key_value_heads,
            head_dim,
            epsilon: written.rms_norm_eps.unwrap_or(1e-6),
            rope,
            windows: written.windows()?,
            query_key_value_bias: bias || kind == "qwen2",
            output_bias: bias,
            mlp_bias: written.mlp_bias && kind == "llama",
            query_key_norm: kind == "qwen3",
            tied: written.tie_word_embeddings,
            max_length: written.max_position_embeddings,
            end_of_text: match written.eos_token_id {
                Some(EndOfText::One(id)) => vec![id],
                Some(EndOfText::Several(ids)) => ids,
                None => Vec::new(),
            },
        })
    }

    /// Returns the number of layers.
    pub fn layers(&self) -> usize {
        self.windows.len()
    }
}

impl Written {
    /// Returns an error for an option whose value this decoder does not compute.
    fn check(&self) -> Result<()> {
        let activation = self.hidden_act.as_deref().unwrap_or("silu");
        ensure!(
            ["silu", "swish"].contains(&activation),
            "`hidden_act` is {activation}: this program computes silu"
        );
        let dropout = self.attention_dropout.unwrap_or(0.0);
        ensure!(
            dropout == 0.0,
            "`attention_dropout` is {dropout}: this program has no dropout, so set it to 0"
        );
        ensure!(
            self.quantization_config.is_none(),
            "`quantization_config` is set: use the weights of the model that is not quantized, with `--method qlora4`"
        );
        let slices = self.pretraining_tp.unwrap_or(1);
        ensure!(
            slices <= 1,
            "`pretraining_tp` is {slices}: this program computes as with 1"
        );
        let epsilon = self.rms_norm_eps.unwrap_or(1e-6);
        ensure!(
            epsilon > 0.0 && epsilon.is_finite(),
            "`rms_norm_eps` is {epsilon}: it must be a positive number"
        );
        for (option, number, most) in [
            ("vocab_size", self.vocab_size, MAX_SIZE),
            ("hidden_size", self.hidden_size, MAX_SIZE),
            ("intermediate_size", self.intermediate_size, MAX_SIZE),
            ("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS),
            ("num_attention_heads", self.num_attention_heads, MAX_SIZE),
            (
                "max_position_embeddings",
                self.max_position_embeddings,
                usize::MAX,
            ),
        ] {
            ensure!(
                (1..=most).contains(&number),
                "`{option}` is {number}: it must be from 1 to {most}"
            );
        }
        Ok(())
    }

    /// Returns the sliding window of each layer.
    fn windows(&self) -> Result<Vec<Option<usize>>> {
        let layers = self.num_hidden_layers;
        let window = match self.model_type.as_str() {
            "llama" => None,
            "mistral" => self.sliding_window.unwrap_or(Some(4096)),
            _ if !self.use_sliding_window.unwrap_or(false) => None,
            _ => self.sliding_window.unwrap_or(Some(4096)),
        };
        ensure!(
            window != Some(0),
            "`sliding_window` is 0: it must be 1 or more"
        );
        if let Some(types) = &self.layer_types {
            ensure!(
                types.len() == layers,
                "`layer_types` has {} entries for {layers} layers",
                types.len()
            );
            let windows = types.iter().map(|kind| match kind.as_str() {
                // `MistralModel` has one mask for all layers, whatever their types.
                "full_attention" if self.model_type == "mistral" && window.is_some() => {
                    bail!("`layer_types` has full_attention, and all layers of a mistral have `sliding_window`: remove one of the two")
                }
                "full_attention" => Ok(None),
                "sliding_attention" if window.is_none() && self.model_type != "llama" => {
                    bail!("`layer_types` has sliding_attention, and the layers have no window: correct `sliding_window` or `use_sliding_window`")
                }
                "sliding_attention" => Ok(window),
                other => bail!("`layer_types` has {other}: this program computes full_attention and sliding_attention"),
            });
            return windows.collect();
        }
        let first = match self.model_type.as_str() {
            "mistral" => 0,
            _ => self.max_window_layers.unwrap_or(28),
        };
        let windows = (0..layers).map(|layer| window.filter(|_| layer >= first));
        Ok(windows.collect())
    }
}
