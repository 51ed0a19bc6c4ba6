//! Candidates of one set of techniques.

use crate::config::FusedConfig;
use crate::footprint::{Resident, StateBytes};

use super::candidate::Candidate;
use super::pass_profile::{BlockChoice, PassProfile};
use super::profile::Profile;
use super::set::TechniqueSet;

/// Bytes by which the buffers of threads differ from run to run.
const SLACK: usize = 1 << 17;

/// The limits of a training.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Number of items in a step.
    pub(super) batch: usize,
    /// Peak bytes.
    pub(super) budget: usize,
    /// Factor on the measured bytes of a pass.
    pub(super) margin: f64,
}

/// A configuration of the training, with its expected bytes.
#[derive(Clone, Debug)]
pub(super) struct Choice<'a> {
    pub(super) set: &'a TechniqueSet,
    pub(super) accumulation: usize,
    pub(super) items: usize,
    /// `None` if no pass over this number of items was measured.
    pub(super) kept: Option<BlockChoice>,
    /// Peak bytes on the compute device, and on the host.
    pub(super) device: usize,
    pub(super) host: usize,
}

impl Choice<'_> {
    pub(super) fn candidate(&self) -> Candidate {
        let kept = self.kept.as_ref();
        Candidate {
            name: self
                .set
                .name(self.accumulation, kept.map_or(&[], |kept| &kept.keep)),
            device_bytes: self.device,
            host_bytes: self.host,
            is_proved: kept.is_some_and(|kept| kept.is_proved),
        }
    }
}

/// Measurements of trainings with one set of techniques.
pub(super) struct SetProfile<'a> {
    pub(super) limits: Limits,
    pub(super) set: &'a TechniqueSet,
    pub(super) profile: &'a Profile,
    pub(super) states: &'a StateBytes,
    /// The config of the set.
    pub(super) config: FusedConfig,
}

impl<'a> SetProfile<'a> {
    /// Returns the largest part of the batch that fits, with the fewest recomputed blocks.
    pub(super) fn first_that_fits(&self) -> Option<Choice<'a>> {
        let first = |recompute| {
            let mut parts = self.parts();
            parts.find_map(|(items, accumulation)| self.fitting(items, accumulation, recompute))
        };
        let whole = self.set.split_first.then(|| first(false)).flatten();
        whole.or_else(|| first(self.set.blocks))
    }

    /// Returns the sizes into which the batch can be split, the largest first, with the number of micro-batches.
    fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        let (batch, set) = (self.limits.batch, self.set);
        let sizes = sizes(batch).into_iter();
        sizes.filter_map(move |items| Some((items, set.accumulation(batch, items)?)))
    }

    fn fitting(&self, items: usize, accumulation: usize, recompute: bool) -> Option<Choice<'a>> {
        let part = self.without_pass(items, accumulation);
        let fits = |in_pass| self.with_pass(&part, in_pass, None).device <= self.limits.budget;
        if let Some(pass) = self.profile.pass_over(items) {
            let kept = pass.choose(recompute, fits)?;
            return Some(self.with_pass(&part, kept.in_pass, Some(kept)));
        }
        let is_open = !self.profile.passes.is_empty()
            && self.profile.too_many_items.is_none_or(|many| items < many);
        // Larger passes are forecast from smaller ones, so measure the next larger pass first.
        let in_pass = self.profile.expected(self.profile.next(items)).in_pass;
        (is_open && fits(in_pass)).then(|| self.with_pass(&part, in_pass, None))
    }

    /// Returns the part of the batch with the least bytes, with all blocks recomputed if the set allows it.
    pub(super) fn smallest(&self) -> Option<Choice<'a>> {
        let of_pass = |pass: &PassProfile| match self.set.blocks {
            true => pass.all_recomputed(),
            false => pass.none_recomputed(),
        };
        let first = self.profile.passes.first()?.run.in_pass();
        let all = self.parts().map(|(items, accumulation)| {
            let part = self.without_pass(items, accumulation);
            if let Some(kept) = self.profile.pass_over(items).and_then(of_pass) {
                return self.with_pass(&part, kept.in_pass, Some(kept));
            }
            let mut choice =
                self.with_pass(&part, self.profile.expected(items).in_pass.max(first), None);
            if self
                .profile
                .too_many_items
                .is_some_and(|many| items >= many)
            {
                choice.device = choice.device.max(self.limits.budget.saturating_add(1));
            }
            choice
        });
        all.min_by_key(|choice| choice.device)
    }

    /// Returns the least bytes of a training whose first pass was stopped: it takes more.
    pub(super) fn least(&self) -> usize {
        let in_pass = self
            .profile
            .least()
            .saturating_sub(self.profile.before_pass());
        let part = self.without_pass(self.limits.batch, 1);
        self.with_pass(&part, in_pass, None).device
    }

    /// Returns the choice without the bytes of its passes.
    fn without_pass(&self, items: usize, accumulation: usize) -> Choice<'a> {
        let (resident, host) = self.resident(accumulation);
        Choice {
            set: self.set,
            accumulation,
            items,
            kept: None,
            device: self.profile.before_pass() + SLACK + resident,
            host,
        }
    }

    /// Adds a pass of `in_pass` bytes to `part`, a choice without the bytes of its passes.
    fn with_pass(
        &self,
        part: &Choice<'a>,
        in_pass: usize,
        kept: Option<BlockChoice>,
    ) -> Choice<'a> {
        let in_pass = (in_pass as f64 * self.limits.margin).ceil() as usize;
        Choice {
            kept,
            device: part.device.saturating_add(in_pass),
            ..part.clone()
        }
    }

    /// Returns the bytes that a training holds outside of its passes, on the device and on the host.
    pub(super) fn resident(&self, accumulation: usize) -> (usize, usize) {
        let (profile, states) = (self.profile, self.states);
        let (parameters, bytes) = (&profile.parameters, &states.bytes);
        let resident = Resident::of(parameters, bytes, &self.config, accumulation > 1);
        let in_flight = states.update.max(resident.gradient_in_f32) + resident.states_in_flight;
        let device = resident.states + in_flight.max(resident.gradients_in_flight);
        (device, resident.host_weights + resident.host_states)
    }
}

/// Returns the divisors of a batch, the largest first.
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
