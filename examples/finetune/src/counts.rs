//! Numbers of weights.

use std::collections::BTreeMap;

use crate::header::Entry;
use crate::options::Options;

/// Numbers of weights of a training.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Weights of the base.
    pub base: u64,
    /// Trained weights.
    pub trained: u64,
}

impl Counts {
    /// Counts the weights of a base with these `tensors`, and those that `options` train.
    pub fn of(options: &Options, tensors: &BTreeMap<String, Entry>) -> Self {
        let base = tensors.values().map(Entry::elements).sum();
        let adapters = options.adapters();
        let has_adapter = |name: &str| {
            let mut targets = adapters.targets.iter();
            targets.any(|target| name.ends_with(&format!("{target}.weight")))
        };
        let adapted = tensors.iter().filter(|(name, _)| has_adapter(name));
        let sizes = adapted.map(|(_, entry)| entry.shape.iter().sum::<usize>() as u64);
        let factors = sizes.sum::<u64>() * adapters.rank as u64;
        let trained = match options.method.has_adapters() {
            true => factors,
            false => base,
        };
        Self { base, trained }
    }
}
