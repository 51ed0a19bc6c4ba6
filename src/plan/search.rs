//! The first candidate that fits, of what was measured.

use crate::config::FusedConfig;
use crate::estimate::{Resident, States};

use super::candidate::Candidate;
use super::error::PlanError;
use super::pass::{Kept, Pass};
use super::profile::Profile;
use super::set::{Formats, Split, TechniqueSet};
use super::storage::WeightStorage;

/// A pass is counted as this multiple of what was measured: what threads compute at once differs from run to run.
pub(super) const MARGIN: f64 = 1.01;

/// The same on a device with memory of its own, which is measured between kernels only.
pub(super) const MARGIN_APART: f64 = 1.25;

/// The buffers of threads differ from run to run by about so many bytes.
const SLACK: usize = 1 << 17;

/// What a training is planned from.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// Items in a step.
    pub(super) batch: usize,
    pub(super) budget: usize,
    pub(super) config: FusedConfig,
    /// In the order in which they are tried.
    pub(super) sets: Vec<TechniqueSet>,
    pub(super) margin: f64,
    pub(super) profiles: Vec<Profile>,
    /// Weights that did not fit, and the bytes that making them takes.
    pub(super) too_large: Vec<(WeightStorage, usize)>,
    /// Why weights can't be in bf16.
    pub(super) refused_bf16: Option<String>,
}

/// A way to train.
#[derive(Clone, Debug)]
pub(super) struct Choice<'a> {
    pub(super) set: &'a TechniqueSet,
    pub(super) storage: WeightStorage,
    pub(super) split: Split,
    pub(super) items: usize,
    /// `None` if no pass over as many items was measured.
    pub(super) kept: Option<Kept>,
    /// Bytes at the peak where the model computes, and on the host.
    pub(super) device: usize,
    pub(super) host: usize,
}

impl Choice<'_> {
    pub(super) fn candidate(&self) -> Candidate {
        let kept = self.kept.as_ref();
        Candidate {
            name: self
                .set
                .name(self.split, kept.map_or(&[], |kept| &kept.keep)),
            device_bytes: self.device,
            host_bytes: self.host,
            is_proved: kept.is_some_and(|kept| kept.is_proved),
        }
    }
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

    /// Returns what is known of a set; `None` if its storage was not measured, or the optimizer does not have its formats.
    fn known<'a>(&'a self, set: &'a TechniqueSet) -> Option<Known<'a>> {
        let profile = self.profile(set.storage())?;
        Some(Known {
            search: self,
            set,
            profile,
            states: profile.states_in(set.formats())?,
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
        let split = |set: &TechniqueSet| Split {
            ranks: set.ranks,
            accumulation: 1,
        };
        let resident = sets.filter_map(|set| Some(self.known(set)?.resident(split(set)).0));
        resident.min().unwrap_or(0)
    }

    /// Returns the smallest candidate of each set, but for the best choice, whose index is returned, too.
    pub(super) fn candidates(&self) -> (Vec<Candidate>, Option<usize>) {
        let best = self.best();
        let (mut candidates, mut taken) = (Vec::<Candidate>::new(), None);
        for set in &self.sets {
            let best = best.as_ref().filter(|best| std::ptr::eq(best.set, set));
            let candidate = best.map(Choice::candidate);
            let Some(candidate) = candidate.or_else(|| self.smallest(set)) else {
                continue;
            };
            // A technique that changes nothing is no candidate.
            if best.is_some() || candidates.iter().all(|it| it.name != candidate.name) {
                taken = taken.or(best.map(|_| candidates.len()));
                candidates.push(candidate);
            }
        }
        (candidates, taken)
    }

    fn smallest(&self, set: &TechniqueSet) -> Option<Candidate> {
        let storage = set.storage();
        let known = self.known(set);
        if let Some(choice) = known.as_ref().and_then(Known::smallest) {
            return Some(choice.candidate());
        }
        let device_bytes = match (self.profile(storage), known) {
            (Some(profile), Some(known)) if profile.passes.is_empty() => {
                profile.least() + known.resident(Split::WHOLE).0
            }
            (Some(_), _) => return None,
            (None, _) => self.too_large.iter().find(|(it, _)| *it == storage)?.1,
        };
        Some(Candidate {
            name: set.name(Split::WHOLE, &[]),
            device_bytes,
            host_bytes: 0,
            is_proved: false,
        })
    }

    /// Returns the error if nothing fits: by how many bytes the smallest candidate misses, and what would help.
    pub(super) fn nothing_fits(&self) -> PlanError {
        let candidates = self.candidates().0.into_iter();
        let least = candidates.map(|it| it.device_bytes).min().unwrap_or(0);
        let mut advice = Vec::new();
        if let Some(reason) = &self.refused_bf16 {
            advice.push(format!("Weights in bf16 are not possible: {reason}."));
        }
        if self.batch == 1 {
            advice.push("A batch of one item can't be split.".into());
        } else if !self.sets.iter().any(|set| set.micro_batches) {
            advice.push("The order does not allow micro-batches.".into());
        }
        let mut passes = self.profiles.iter().flat_map(|it| &it.passes).peekable();
        if passes.peek().is_some() && passes.all(|pass| pass.curve.is_none()) {
            advice.push("No block of the model is under `gradient_checkpointing`.".into());
        }
        advice.push(
            "Freeze parameters, train LoRA adapters (`apply_lora`), or put their base in 4 bits (`QuantizedLora`); \
             or take a shorter item, a smaller model, or an optimizer with less state"
                .into(),
        );
        PlanError::NothingFits {
            budget: self.budget,
            least: least.max(self.budget.saturating_add(1)),
            advice: advice.join(" "),
        }
    }
}

impl Split {
    const WHOLE: Self = Self {
        ranks: 1,
        accumulation: 1,
    };
}

/// What is known of trainings with a set of techniques.
struct Known<'a> {
    search: &'a Search,
    set: &'a TechniqueSet,
    profile: &'a Profile,
    states: &'a States,
    config: FusedConfig,
}

impl<'a> Known<'a> {
    fn first_that_fits(&self) -> Option<Choice<'a>> {
        let first = |recompute| {
            let mut parts = self.parts();
            parts.find_map(|(items, split)| self.fitting(items, split, recompute))
        };
        let whole = self.set.split_first.then(|| first(false)).flatten();
        whole.or_else(|| first(self.set.blocks))
    }

    /// Parts of the batch, the largest first.
    fn parts(&self) -> impl Iterator<Item = (usize, Split)> {
        let (batch, set) = (self.search.batch, self.set);
        let sizes = sizes(batch).into_iter();
        sizes.filter_map(move |items| Some((items, set.split(batch, items)?)))
    }

    fn fitting(&self, items: usize, split: Split, recompute: bool) -> Option<Choice<'a>> {
        let budget = self.search.budget;
        let fits = |in_pass| self.choice(items, split, in_pass, None).device <= budget;
        if let Some(pass) = self.profile.pass_over(items) {
            let kept = pass.choose(recompute, fits)?;
            return Some(self.choice(items, split, kept.in_pass, Some(kept)));
        }
        let is_open = !self.profile.passes.is_empty()
            && self.profile.too_many.is_none_or(|many| items < many);
        // More than a few items are expected once fewer were measured.
        let in_pass = self.profile.expected(self.profile.next(items)).in_pass;
        (is_open && fits(in_pass)).then(|| self.choice(items, split, in_pass, None))
    }

    /// Returns the part of the batch that takes least, with all blocks recomputed if this set may.
    fn smallest(&self) -> Option<Choice<'a>> {
        let of_pass = |pass: &Pass| match self.set.blocks {
            true => pass.all_recomputed(),
            false => pass.none_recomputed(),
        };
        let all = self.parts().filter_map(|(items, split)| {
            if let Some(kept) = self.profile.pass_over(items).and_then(of_pass) {
                return Some(self.choice(items, split, kept.in_pass, Some(kept)));
            }
            let first = self.profile.passes.first()?;
            let in_pass = self.profile.expected(items).in_pass;
            let mut choice = self.choice(items, split, in_pass.max(first.run.in_pass()), None);
            if self.profile.too_many.is_some_and(|many| items >= many) {
                choice.device = choice.device.max(self.search.budget.saturating_add(1));
            }
            Some(choice)
        });
        all.min_by_key(|choice| choice.device)
    }

    fn choice(&self, items: usize, split: Split, in_pass: usize, kept: Option<Kept>) -> Choice<'a> {
        let (resident, host) = self.resident(split);
        let in_pass = (in_pass as f64 * self.search.margin).ceil() as usize;
        let before = self.profile.before_pass() + SLACK + resident;
        Choice {
            set: self.set,
            storage: self.profile.storage,
            split,
            items,
            kept,
            device: before.saturating_add(in_pass),
            host,
        }
    }

    /// Returns the bytes that a training holds outside of its passes, on the device and on the host.
    fn resident(&self, split: Split) -> (usize, usize) {
        let accumulates = split.accumulation > 1 && !self.set.sums_in_state(split);
        let (parameters, states) = (&self.profile.parameters, self.states);
        let resident = Resident::of(
            parameters,
            &states.bytes,
            &self.config,
            accumulates,
            split.ranks,
        );
        let in_flight = match resident.states_in_flight {
            0 => states.update,
            bytes => states.update + bytes,
        };
        let mut device = resident.states + in_flight.max(resident.gradients_in_flight);
        if split.ranks > 1 {
            // Gradients of the other ranks wait for the slowest rank, and the new weight arrives.
            let largest = self.profile.largest_gradient();
            let each = self.config.max_bytes_under_way.unwrap_or(largest / 4 * 5);
            device += (split.ranks - 1) * each + 2 * largest;
        }
        (device, resident.host_weights + resident.host_states)
    }
}

/// Divisors of a batch, the largest first.
fn sizes(batch: usize) -> Vec<usize> {
    let small = (1..).take_while(|it| *it <= batch / it);
    let small: Vec<_> = small.filter(|it| batch.is_multiple_of(*it)).collect();
    let large = small.iter().map(|it| batch / it);
    let mut sizes: Vec<_> = large.chain(small.iter().rev().copied()).collect();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_batch_divide_it() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(7), [7, 1]);
        assert_eq!(sizes(16), [16, 8, 4, 2, 1]);
        assert_eq!(sizes(12), [12, 6, 4, 3, 2, 1]);
    }
}
