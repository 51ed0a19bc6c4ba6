use burn::store::KeyRemapper;

/// Prefixes of names in a file, and in a module. `{}` is the number of a layer.
type Rules = &'static [(&'static str, &'static str)];

const DECODER: Rules = &[
    ("model.embed_tokens.", "embedding."),
    ("model.layers.{}.input_layernorm.", "layers.{}.norm_1."),
    (
        "model.layers.{}.self_attn.q_proj.",
        "layers.{}.attention.query.",
    ),
    (
        "model.layers.{}.self_attn.k_proj.",
        "layers.{}.attention.key.",
    ),
    (
        "model.layers.{}.self_attn.v_proj.",
        "layers.{}.attention.value.",
    ),
    (
        "model.layers.{}.self_attn.o_proj.",
        "layers.{}.attention.output.",
    ),
    (
        "model.layers.{}.self_attn.q_norm.",
        "layers.{}.attention.query_norm.",
    ),
    (
        "model.layers.{}.self_attn.k_norm.",
        "layers.{}.attention.key_norm.",
    ),
    (
        "model.layers.{}.post_attention_layernorm.",
        "layers.{}.norm_2.",
    ),
    (
        "model.layers.{}.mlp.gate_proj.",
        "layers.{}.mlp.swiglu.linear_inner.",
    ),
    (
        "model.layers.{}.mlp.up_proj.",
        "layers.{}.mlp.swiglu.linear_outer.",
    ),
    ("model.layers.{}.mlp.down_proj.", "layers.{}.mlp.output."),
    ("model.norm.", "norm."),
    ("lm_head.", "head."),
];

const BERT: Rules = &[
    ("embeddings.word_embeddings.", "embeddings.words."),
    ("embeddings.position_embeddings.", "embeddings.positions."),
    ("embeddings.token_type_embeddings.", "embeddings.types."),
    ("embeddings.LayerNorm.", "embeddings.norm."),
    (
        "encoder.layer.{}.attention.self.query.",
        "encoder.layers.{}.mha.query.",
    ),
    (
        "encoder.layer.{}.attention.self.key.",
        "encoder.layers.{}.mha.key.",
    ),
    (
        "encoder.layer.{}.attention.self.value.",
        "encoder.layers.{}.mha.value.",
    ),
    (
        "encoder.layer.{}.attention.output.dense.",
        "encoder.layers.{}.mha.output.",
    ),
    (
        "encoder.layer.{}.attention.output.LayerNorm.",
        "encoder.layers.{}.norm_1.",
    ),
    (
        "encoder.layer.{}.intermediate.dense.",
        "encoder.layers.{}.pwff.linear_inner.",
    ),
    (
        "encoder.layer.{}.output.dense.",
        "encoder.layers.{}.pwff.linear_outer.",
    ),
    (
        "encoder.layer.{}.output.LayerNorm.",
        "encoder.layers.{}.norm_2.",
    ),
    ("pooler.dense.", "pooler."),
];

/// The names of weights in the files of Hugging Face's `transformers`, and in a module that is made of Burn's layers.
///
/// | file of a decoder (`llama`, `mistral`, `qwen2`, `qwen3`) | module |
/// |---|---|
/// | `model.embed_tokens`, `model.norm`, `lm_head` | `embedding`, `norm`, `head` |
/// | `model.layers.N.input_layernorm`, `post_attention_layernorm` | `layers.N.norm_1`, `norm_2` |
/// | `model.layers.N.self_attn.q_proj`, `k_proj`, `v_proj`, `o_proj` | `layers.N.attention.query`, `key`, `value`, `output` |
/// | `model.layers.N.self_attn.q_norm`, `k_norm` | `layers.N.attention.query_norm`, `key_norm` |
/// | `model.layers.N.mlp.gate_proj`, `up_proj` | `layers.N.mlp.swiglu`, a [`SwiGlu`](burn::nn::SwiGlu) |
/// | `model.layers.N.mlp.down_proj` | `layers.N.mlp.output` |
///
/// | file of a BERT | module |
/// |---|---|
/// | `embeddings.word_embeddings`, `position_embeddings`, `token_type_embeddings` | `embeddings.words`, `positions`, `types` |
/// | `embeddings.LayerNorm` | `embeddings.norm` |
/// | `encoder` | `encoder`, a [`TransformerEncoder`](burn::nn::transformer::TransformerEncoder) without `norm_first` |
/// | `pooler.dense` | `pooler` |
///
/// A BERT has `layer_norm_eps` in all of its norms (1e-12, where Burn's default is 1e-5): `TransformerEncoderConfig::with_layer_norm_eps`
/// and `LayerNormConfig::with_epsilon`.
///
/// Other names stay. The prefix `model.` or `bert.` may be missing in a file. Files store linear layers transposed, and name the
/// weights of norms differently: [`PyTorchToBurnAdapter`](burn::store::PyTorchToBurnAdapter) and
/// [`BurnToPyTorchAdapter`](burn::store::BurnToPyTorchAdapter) convert both.
///
/// Burn's [`RotaryEncoding`](burn::nn::RotaryEncoding) rotates neighbouring elements, and these decoders rotate an element of the
/// first half of a head with one of the second: a decoder needs a rotation of its own. The example `finetune` has one.
///
/// ```
/// use backburn::{WeightNames, load_from_store};
/// use burn::module::Module;
/// use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig};
/// use burn::store::{BurnToPyTorchAdapter, ModuleSnapshot, ModuleStore, PyTorchToBurnAdapter, SafetensorsStore};
/// use burn::tensor::{Device, FloatDType};
///
/// #[derive(Module, Debug)]
/// struct Bert {
///     encoder: TransformerEncoder, // and the embeddings
/// }
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// let names = WeightNames::bert();
/// let bert = || Bert { encoder: TransformerEncoderConfig::new(8, 16, 2, 1).init(&Device::flex().autodiff()) };
/// let mut file = SafetensorsStore::from_file(&path).with_to_adapter(BurnToPyTorchAdapter).remap(names.to_file());
/// bert().save_into(&mut file)?; // a file that `transformers` reads
/// # let keys = SafetensorsStore::from_file(&path).keys()?;
/// # assert!(keys.contains(&"encoder.layer.0.attention.output.LayerNorm.weight".to_string()), "{keys:?}");
///
/// let store = |path| SafetensorsStore::from_file(path).with_from_adapter(PyTorchToBurnAdapter).remap(names.to_module());
/// let (bert, applied) = load_from_store(bert(), &path, store, FloatDType::F32)?;
/// assert!(applied.missing.is_empty() && applied.unused.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightNames {
    /// A prefix of all names that files may lack.
    optional: &'static str,
    rules: Rules,
}

impl WeightNames {
    /// Returns the names of decoders: `llama`, `mistral`, `qwen2` and `qwen3`.
    pub fn decoder() -> Self {
        Self {
            optional: "model.",
            rules: DECODER,
        }
    }

    /// Returns the names of `bert`.
    pub fn bert() -> Self {
        Self {
            optional: "bert.",
            rules: BERT,
        }
    }

    /// Returns the mapping of names in a file to paths in a module, to load a file with a store of Burn.
    pub fn to_module(&self) -> KeyRemapper {
        let optional = pattern(self.optional);
        remapper(self.rules.iter().map(|(file, module)| {
            let file = file.strip_prefix(self.optional).unwrap_or(file);
            (format!("^(?:{optional})?{}", pattern(file)), *module)
        }))
    }

    /// Returns the mapping of paths in a module to names in a file, to save a file with a store of Burn.
    pub fn to_file(&self) -> KeyRemapper {
        let rules = self.rules.iter();
        remapper(rules.map(|(file, module)| (format!("^{}", pattern(module)), *file)))
    }
}

/// Returns the regular expression of a prefix.
fn pattern(prefix: &str) -> String {
    prefix.replace('.', r"\.").replace("{}", r"(\d+)")
}

fn remapper(rules: impl Iterator<Item = (String, &'static str)>) -> KeyRemapper {
    let rules = rules.map(|(from, to)| (from, to.replace("{}", "${1}")));
    KeyRemapper::from_pattern_iter(rules).expect("the patterns are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(names: &KeyRemapper, name: &str) -> String {
        let patterns = names.patterns.iter();
        patterns.fold(name.to_owned(), |name, (from, to)| {
            from.replace_all(&name, to.as_str()).into_owned()
        })
    }

    #[test]
    fn names_round_trip() {
        for names in [WeightNames::decoder(), WeightNames::bert()] {
            let (to_module, to_file) = (names.to_module(), names.to_file());
            for (file, module) in names.rules {
                let [file, module] = [file, module].map(|it| it.replace("{}", "12") + "weight");
                assert_eq!(renamed(&to_module, &file), module);
                assert_eq!(renamed(&to_file, &module), file);
                let short = file.strip_prefix(names.optional).unwrap_or(&file);
                assert_eq!(renamed(&to_module, short), module);
                let long = format!("{}{short}", names.optional);
                assert_eq!(renamed(&to_module, &long), module);
            }
            for other in ["classifier.weight", "layers.norm", "model.normal.weight"] {
                assert_eq!(renamed(&to_module, other), other);
                assert_eq!(renamed(&to_file, other), other);
            }
        }
    }
}
