//! Numbers of weights.

use std::collections::BTreeMap;

use crate::config::DecoderConfig;
use crate::header::Entry;
use crate::options::Options;
use crate::weights;

/// Numbers of weights of a training.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Weights of the base.
    pub base: u64,
    /// Weights of the base that have an adapter.
    pub adapted: u64,
    /// Weights of the largest tensor of the base.
    pub largest: u64,
    /// Trained weights.
    pub trained: u64,
}

impl Counts {
    /// Counts the weights of a base with these `tensors`, and those that `options` train.
    pub fn of(
        options: &Options,
        config: &DecoderConfig,
        tensors: &BTreeMap<String, Entry>,
    ) -> Self {
        let loaded = tensors
            .iter()
            .filter(|(name, _)| weights::is_loaded(name, config.tied));
        let loaded = loaded.map(|(_, entry)| entry.elements);
        let (base, largest) = (loaded.clone().sum(), loaded.max().unwrap_or(0));
        let adapters = options.adapters();
        let has_adapter = |name: &str| {
            let mut targets = adapters.targets.iter();
            targets.any(|target| name.ends_with(&format!("{target}.weight")))
        };
        let adapted = tensors.iter().filter(|(name, _)| has_adapter(name));
        let adapted: Vec<_> = adapted.map(|(_, entry)| entry).collect();
        let sizes = adapted.iter();
        let sizes = sizes.map(|entry| entry.shape.iter().sum::<usize>() as u64);
        let factors = sizes.sum::<u64>() * adapters.rank as u64;
        let trained = match options.method.has_adapters() {
            true => factors,
            false => base,
        };
        Self {
            base,
            adapted: adapted.iter().map(|entry| entry.elements).sum(),
            largest,
            trained,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[test]
    fn tensors_that_are_not_loaded_are_not_counted() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/llama-tied");
        let config = DecoderConfig::read(&folder).unwrap();
        let mut tensors = weights::check(&folder, &config).unwrap();
        let line = "finetune --model m --data d --output o --method";
        let counts = |method, tensors: &BTreeMap<String, Entry>| {
            let options = Options::parse_from(line.split(' ').chain([method]));
            let counts = Counts::of(&options, &config, tensors);
            (counts.base, counts.trained)
        };
        let before = ["full", "lora"].map(|method| counts(method, &tensors));
        assert_eq!(before[0].0, before[0].1);
        let embedding = tensors["model.embed_tokens.weight"].clone();
        let rotation = "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned();
        tensors.insert("lm_head.weight".to_owned(), embedding.clone());
        tensors.insert(rotation, embedding);
        assert_eq!(
            ["full", "lora"].map(|method| counts(method, &tensors)),
            before
        );
    }
}
