//! The refusals of combinations.

use crate::common::FloatDType;
use crate::options::{Clipping, Group, Numbers, Options, Scaling, Statistics, Stepped, Waiting};

/// Returns the reasons for which the documentation refuses these options.
pub fn refusals(options: &Options) -> Vec<&'static str> {
    let Options {
        group,
        clipping,
        scaling,
        waiting,
        numbers,
        stepped,
        ..
    } = *options;
    let exact = matches!(clipping, Clipping::Exact | Clipping::ExactInBuffer);
    let skips_step = matches!(scaling, Scaling::Static | Scaling::SkipStep);
    let in_state = group == Group::ThreeInState;
    let in_few_bits = matches!(stepped, Stepped::AdamW8 | Stepped::AdamW4);
    let has_statistics = options.statistics == Statistics::Normed && numbers == Numbers::F32InBf16;
    let offloads = waiting != Waiting::None;
    let reasons = [
        (in_state && in_few_bits, "can't accumulate in its state"),
        (in_state && exact, "exact clipping needs the norm"),
        (in_state && skips_step, "a step can't be skipped"),
        (
            exact && scaling == Scaling::SkipParameter,
            "exact clipping measures all",
        ),
        (
            in_state && waiting == Waiting::States,
            "an offloaded state is stored as a record",
        ),
        (
            options.compute_dtype().is_some() && (options.has_adapters() || has_statistics),
            "compute_dtype",
        ),
        (
            offloads && options.lacks_a_host(),
            "which the host Device<NdArray(Cpu)> does not have",
        ),
        (
            waiting == Waiting::States && options.dtype() == FloatDType::F64,
            "optimizer states are in f32",
        ),
    ];
    let reasons = reasons.into_iter();
    reasons
        .filter_map(|(refuses, says)| refuses.then_some(says))
        .collect()
}
