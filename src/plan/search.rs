//! Search for the first candidate that fits.

use crate::config::FusedConfig;

use super::candidate::Candidate;
use super::error::PlanError;
use super::optimizer::Formats;
use super::profile::Profile;
use super::set::TechniqueSet;
use super::set_profile::{Choice, Limits, SetProfile};
use super::storage::WeightStorage;

/// The input and the measurements of a planner.
#[derive(Clone, Debug)]
pub(super) struct Search {
    pub(super) limits: Limits,
    pub(super) config: FusedConfig,
    /// The sets in the order in which they are tried.
    pub(super) sets: Vec<TechniqueSet>,
    pub(super) profiles: Vec<Profile>,
    /// Storages whose weights did not fit, with the bytes to create them.
    pub(super) too_large: Vec<(WeightStorage, usize)>,
    /// Storages that the model or the device can't have, with the reason.
    pub(super) refused: Vec<(WeightStorage, String)>,
}

impl Search {
    /// Returns the storages of the sets, in their order.
    pub(super) fn storages(&self) -> Vec<WeightStorage> {
        let mut storages: Vec<_> = self.sets.iter().map(TechniqueSet::storage).collect();
        let mut seen = Vec::new();
        storages.retain(|it| !seen.contains(it) && (seen.push(*it), true).1);
        storages
    }

    /// Returns the formats of the sets with this storage.
    pub(super) fn formats(&self, storage: WeightStorage) -> Vec<Formats> {
        let sets = self.sets.iter().filter(|set| set.storage() == storage);
        let mut formats: Vec<_> = sets.map(TechniqueSet::formats).collect();
        formats.dedup();
        formats
    }

    fn profile(&self, storage: WeightStorage) -> Option<&Profile> {
        self.profiles.iter().find(|it| it.storage == storage)
    }

    /// Returns the profile of a set; `None` if its storage was not measured, or the optimizer or a weight can't have its formats.
    fn known<'a>(&'a self, set: &'a TechniqueSet) -> Option<SetProfile<'a>> {
        let profile = self.profile(set.storage())?;
        if set.offloads_states() && !profile.trains_in_f32() {
            return None;
        }
        let states = profile.states_in(set.formats())?;
        Some(SetProfile {
            limits: self.limits,
            set,
            profile,
            states,
            config: set.config(&self.config),
        })
    }

    /// Returns the first set that fits, with the largest parts of the batch and the fewest recomputed blocks.
    pub(super) fn best(&self) -> Option<Choice<'_>> {
        self.sets
            .iter()
            .find_map(|set| self.known(set)?.first_that_fits())
    }

    /// Returns the least bytes that a training with this storage holds outside of its passes.
    pub(super) fn least_resident(&self, storage: WeightStorage) -> usize {
        let sets = self.sets.iter().filter(|set| set.storage() == storage);
        let resident = sets.filter_map(|set| Some(self.known(set)?.resident(1).0));
        resident.min().unwrap_or(0)
    }

    /// Returns the smallest candidate of each set, or the best choice for its set, and the index of the best choice.
    pub(super) fn candidates(&self) -> (Vec<Candidate>, Option<usize>) {
        let best = self.best();
        let (mut candidates, mut taken) = (Vec::<Candidate>::new(), None);
        for set in &self.sets {
            let best = best.as_ref().filter(|best| std::ptr::eq(best.set, set));
            let candidate = best.map(Choice::candidate);
            let Some(candidate) = candidate.or_else(|| self.smallest(set)) else {
                continue;
            };
            if best.is_some() {
                taken = Some(candidates.len());
            } else if candidates.iter().any(|it| it.name == candidate.name) {
                // Skip a technique that changes nothing.
                continue;
            }
            candidates.push(candidate);
        }
        (candidates, taken)
    }

    fn smallest(&self, set: &TechniqueSet) -> Option<Candidate> {
        let storage = set.storage();
        let known = self.known(set);
        if let Some(choice) = known.as_ref().and_then(SetProfile::smallest) {
            return Some(choice.candidate());
        }
        let device_bytes = match (self.profile(storage), known) {
            (Some(profile), Some(known)) if profile.passes.is_empty() => known.least(),
            (Some(_), _) => return None,
            (None, _) => self.too_large.iter().find(|(it, _)| *it == storage)?.1,
        };
        Some(Candidate {
            name: set.name(1, &[]),
            device_bytes,
            host_bytes: 0,
            is_proved: false,
        })
    }

    /// Returns the error if nothing fits, with the expected bytes of the smallest candidate, and advice.
    pub(super) fn nothing_fits(&self) -> PlanError {
        let candidates = self.candidates().0.into_iter();
        let least = candidates.map(|it| it.device_bytes).min().unwrap_or(0);
        let mut advice = Vec::new();
        for (storage, reason) in &self.refused {
            let kind = match (storage.in_bf16, storage.on_host) {
                (true, true) => "in bf16 on the host",
                (_, true) => "on the host",
                _ => "in bf16",
            };
            advice.push(format!("Weights {kind} are not possible: {reason}."));
        }
        if self.limits.batch == 1 {
            advice.push("A batch of one item can't be split.".into());
        } else if !self.sets.iter().any(|set| set.micro_batches) {
            advice.push("The order does not allow micro-batches.".into());
        }
        let mut passes = self.profiles.iter().flat_map(|it| &it.passes).peekable();
        if passes.peek().is_some() && passes.all(|pass| pass.curve.is_none()) {
            advice.push("No block of the model is under `gradient_checkpointing`.".into());
        }
        advice.push(
            "Freeze parameters, train LoRA adapters (`apply_lora`), or quantize their base to 4 bits (`QuantizedLora`); \
             or use shorter items, a smaller model, or an optimizer with less state"
                .into(),
        );
        PlanError::NothingFits {
            budget: self.limits.budget,
            least: least.max(self.limits.budget.saturating_add(1)),
            is_enough: false,
            advice: advice.join(" "),
        }
    }
}
