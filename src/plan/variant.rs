//! What was measured of a model with weights of one type in one place.

use std::fmt::{Display, Formatter};

use burn::tensor::FloatDType;

use crate::estimate::{self, States};
use crate::offload::{Offload, OffloadConfig, WaitingBlocks};
use crate::optim::{StateFormat, WeightFormat};
use crate::weights::Entry;

use super::error::PlanError;
use super::ladder::{Fidelity, Rung, in_millionths};
use super::optimizer::PlannedOptimizer;
use super::pass::Pass;
use super::run::Run;

/// Bytes that the first pass takes at least for threads of the backend, activations and notes.
pub(super) const AT_FIRST: usize = 1 << 19;

/// How states and weights are kept; none as the optimizer says.
pub(super) type Formats = (Option<StateFormat>, Option<WeightFormat>);

/// In which type the weights are, and where: trainings that differ in these are measured each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Footing {
    /// In bf16; else in the type of the model.
    pub(super) in_bf16: bool,
    /// Those of blocks wait on the host.
    pub(super) on_host: bool,
}

impl Footing {
    /// The type of the weights; none is that of the model.
    pub(super) fn dtype(self) -> Option<FloatDType> {
        self.in_bf16.then_some(FloatDType::BF16)
    }

    /// What waits on the host while it is measured.
    pub(super) fn offload(self) -> Option<OffloadConfig> {
        let weights = Offload::Weights(WaitingBlocks::All);
        self.on_host.then(|| OffloadConfig::new(weights))
    }

    /// Bytes of weights while they come into being: of so many elements each, that may be there already.
    pub(super) fn making(self, sizes: &[(usize, bool)]) -> usize {
        let made = sizes
            .iter()
            .filter(|(_, is_there)| !is_there || self.in_bf16);
        let made: usize = made.map(|(elements, _)| elements).sum();
        let largest = sizes.iter().map(|(elements, _)| elements).max();
        // One is drawn, and cast, beside the others.
        made * if self.in_bf16 { 2 } else { 4 } + 8 * largest.unwrap_or(&0)
    }
}

impl Display for Footing {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let dtype = if self.in_bf16 {
            "in bf16"
        } else {
            "in their type"
        };
        let place = if self.on_host { ", on the host" } else { "" };
        write!(f, "{dtype}{place}")
    }
}

/// A model with weights on one footing.
#[derive(Clone, Debug, Default)]
pub(super) struct Variant {
    pub(super) footing: Footing,
    pub(super) parameters: Vec<Entry>,
    /// Bytes of weights that somebody else holds, too: the first update makes a copy of each.
    pub(super) shared: usize,
    pub(super) states: Vec<(Formats, States)>,
    /// Bytes of the notes of an optimizer without states, that steps are tried with.
    pub(super) notes: usize,
    /// Bytes in use where passes have ended early, the fewest.
    pub(super) ended_at: Option<usize>,
    /// Over more and more items.
    pub(super) passes: Vec<Pass>,
    /// A pass over the whole batch as stock Burn does it.
    pub(super) stock: Option<Run>,
    /// Bytes in use after all passes.
    pub(super) left: usize,
}

impl Variant {
    /// Nothing yet of `parameters`, for which so many bytes have come into being.
    pub(super) fn new(footing: Footing, parameters: Vec<Entry>, held: usize) -> Self {
        let bytes: usize = parameters.iter().map(Entry::bytes).sum();
        let missing = bytes.saturating_sub(held);
        // Weights on the host have no bytes where they are looked for.
        let are_shared = !footing.on_host && missing > bytes / 64;
        Self {
            footing,
            parameters,
            shared: if are_shared { missing } else { 0 },
            ..Self::default()
        }
    }

    /// Measures what `optimizer` holds in these formats, as far as it can be kept so.
    pub(super) fn measure_states<O: PlannedOptimizer>(
        &mut self,
        optimizer: &O,
        formats: &[Formats],
    ) -> Result<(), PlanError> {
        for &(states, weights) in formats {
            let Some(optimizer) = optimizer.formatted(states, weights) else {
                continue;
            };
            match estimate::measure(&optimizer.build(), &self.parameters, O::SHAPE_TELLS) {
                Ok(held) => self.states.push(((states, weights), held)),
                Err(error) if (states, weights) == (None, None) => return Err(error.into()),
                Err(error) => log::info!("{error}"),
            }
        }
        Ok(())
    }

    pub(super) fn states_in(&self, formats: Formats) -> Option<&States> {
        let known = self.states.iter().find(|(known, _)| *known == formats);
        known.map(|(_, states)| states)
    }

    /// Bytes of the gradients of all parameters in training.
    fn gradients(&self) -> impl Iterator<Item = usize> {
        let trained = self.parameters.iter().filter(|it| it.is_trained());
        trained.map(Entry::bytes)
    }

    /// Bytes of the largest gradient.
    pub(super) fn largest(&self) -> usize {
        self.gradients().max().unwrap_or(0)
    }

    /// Bytes in use before a pass. What larger passes have made the backend keep for itself stays.
    pub(super) fn floor(&self) -> usize {
        let starts = self.passes.iter().map(Pass::start);
        let start = starts.fold(self.left, usize::max);
        start + self.shared
    }

    /// Bytes that a pass takes at least if none has come to its end: those in use before, and what it takes in any case, or what one has
    /// taken until it was ended.
    pub(super) fn least_in_pass(&self) -> usize {
        let in_any_case = self.left + 2 * self.largest() + AT_FIRST;
        in_any_case.max(self.ended_at.unwrap_or(0))
    }

    /// Whether a pass of stock Burn over `batch` items stays within `budget`.
    pub(super) fn room_for_stock(&self, batch: usize, budget: usize) -> bool {
        let is_plain = !self.footing.in_bf16 && !self.footing.on_host;
        let pass = self.passes.iter().find(|pass| pass.items == batch);
        let kept = pass.and_then(Pass::none_twice);
        let gradients: usize = self.gradients().sum();
        is_plain && kept.is_some_and(|kept| kept.run.peak + gradients <= budget)
    }

    /// A training with stock Burn, if its pass was measured.
    pub(super) fn with_stock(&self) -> Option<Rung> {
        let (run, states) = (self.stock?, self.states_in((None, None))?);
        let after = run.start + self.gradients().sum::<usize>() + states.update;
        Some(Rung {
            name: "stock Burn".to_string(),
            device_bytes: run.peak.max(after) + states.sum(),
            host_bytes: 0,
            seconds: Some(in_millionths(run.seconds + states.seconds)),
            fidelity: Fidelity::Exact,
        })
    }
}
