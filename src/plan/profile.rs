//! Measurements of a model with one storage of its weights.

use backburn_memory as memory;
use burn::module::Module;
use burn::tensor::DType;

use crate::footprint::{self, StateBytes};
use crate::fused::Loss;
use crate::weights::Entry;

use super::error::PlanError;
use super::forecast::Forecast;
use super::optimizer::{Formats, PlannedOptimizer};
use super::pass_profile::{BlockChoice, PassProfile};
use super::probe::{Probe, Stopped};
use super::storage::{FIRST_PASS_BYTES, WeightStorage};

/// Maximum ratio of the items of a pass to those of the largest measured pass.
const GROWTH: usize = 4;

/// Upper bound of the number of blocks in a step.
const MAX_BLOCKS: usize = 1 << 12;

#[derive(Clone, Debug, Default)]
pub(super) struct Profile {
    pub(super) storage: WeightStorage,
    pub(super) parameters: Vec<Entry>,
    /// Bytes of weights that `init` shares with other handles, which the first update copies.
    shared: usize,
    states: Vec<(Formats, StateBytes)>,
    /// Maximum bytes in use between passes.
    between: usize,
    /// Minimum of the bytes in use at which a pass was stopped.
    stopped_at: Option<usize>,
    /// Measured passes in ascending order of items.
    pub(super) passes: Vec<PassProfile>,
    /// Minimum number of items that did not fit with all blocks recomputed.
    pub(super) too_many_items: Option<usize>,
    /// Items of the last pass if it was stopped by its forecast. Fewer items are measured to improve the forecast.
    undecided: Option<usize>,
}

impl Profile {
    /// Creates the profile of `parameters`. The first update copies `shared` bytes of them, which have another owner.
    pub(super) fn new(storage: WeightStorage, parameters: Vec<Entry>, shared: usize) -> Self {
        Self {
            storage,
            parameters,
            // Weights on the host take no bytes of the device.
            shared: if storage.on_host { 0 } else { shared },
            ..Self::default()
        }
    }

    /// Returns `true` if all trained weights are in f32.
    pub(super) fn trains_in_f32(&self) -> bool {
        let mut trained = self.parameters.iter().filter(|it| it.is_trained());
        trained.all(|parameter| parameter.dtype == DType::F32)
    }

    /// Measures the states of `optimizer` in these formats, if it has them.
    pub(super) fn measure_states<O: PlannedOptimizer>(
        &mut self,
        optimizer: &O,
        formats: Formats,
    ) -> Result<(), PlanError> {
        let Some(optimizer) = optimizer.formatted(formats) else {
            return Ok(());
        };
        match footprint::measure(
            &optimizer.build(),
            &self.parameters,
            O::DEPENDS_ON_SHAPE_ONLY,
        ) {
            Ok(held) => self.states.push((formats, held)),
            Err(error) if formats == (None, None) => return Err(error.into()),
            Err(error) => log::info!("{error}"),
        }
        Ok(())
    }

    pub(super) fn states_in(&self, formats: Formats) -> Option<&StateBytes> {
        let known = self.states.iter().find(|(known, _)| *known == formats);
        known.map(|(_, states)| states)
    }

    /// Returns the bytes of the largest gradient.
    pub(super) fn largest_gradient(&self) -> usize {
        let trained = self.parameters.iter().filter(|it| it.is_trained());
        trained.map(Entry::bytes).max().unwrap_or(0)
    }

    /// Returns the bytes in use at the start of a training pass, without states.
    pub(super) fn before_pass(&self) -> usize {
        self.between + self.shared
    }

    /// Returns a lower bound of the peak bytes, for a profile without a completed pass.
    pub(super) fn least(&self) -> usize {
        let least = self.between + 2 * self.largest_gradient() + FIRST_PASS_BYTES;
        least.max(self.stopped_at.unwrap_or(0))
    }

    /// Returns the largest measured pass over fewer items.
    fn below(&self, items: usize) -> Option<&PassProfile> {
        self.passes.iter().rfind(|pass| pass.items < items)
    }

    pub(super) fn pass_over(&self, items: usize) -> Option<&PassProfile> {
        self.passes.iter().find(|pass| pass.items == items)
    }

    /// Returns the forecast of a pass over `items` with recomputed blocks.
    pub(super) fn expected(&self, items: usize) -> Forecast {
        let fewer = self.passes.iter().filter(|pass| pass.items < items);
        let known: Vec<_> = fewer.map(|pass| (pass.items, pass.run)).collect();
        let expected = Forecast::after(&known, items, self.largest_gradient());
        let more = self.passes.iter().find(|pass| pass.items > items);
        more.map_or(expected, |pass| expected.at_most(&pass.run))
    }

    /// Measures passes over one item, and over two, of a batch.
    pub(super) fn measure_first<M: Module, L: Loss, F: Fn(&M, usize) -> L>(
        &mut self,
        probe: &mut Probe<'_, M, F>,
        batch: usize,
    ) -> Result<(), PlanError> {
        self.between = memory::live(probe.device)?;
        // The lower bound excludes activations, which are unknown before the first pass.
        if self.least() > probe.budget {
            return Ok(());
        }
        self.measure(probe, 1)?;
        if batch > 1 && self.too_many_items.is_none() {
            self.measure(probe, 2)?;
        }
        Ok(())
    }

    /// Returns the number of items to measure next on the way to a pass over `items`.
    pub(super) fn next(&self, items: usize) -> usize {
        let fewer = self.below(items).map_or(0, |pass| pass.items);
        let undecided = self.undecided.filter(|undecided| *undecided > fewer);
        let most = undecided.map_or(fewer.saturating_mul(GROWTH), |it| fewer.midpoint(it));
        items.min(most.max(1))
    }

    /// Measures a pass over `items` with all blocks recomputed.
    pub(super) fn measure<M: Module, L: Loss, F: Fn(&M, usize) -> L>(
        &mut self,
        probe: &mut Probe<'_, M, F>,
        items: usize,
    ) -> Result<(), PlanError> {
        let keep = vec![false; MAX_BLOCKS];
        let recorded = match probe.pass(items, &keep, self.expected(items))? {
            Ok(recorded) => recorded,
            Err(stopped) => {
                self.note_stop(stopped);
                let fewer = self.below(items).map_or(0, |pass| pass.items);
                let is_near = items <= fewer + fewer / 4 + 1;
                match stopped.exceeded_limit || is_near {
                    true => self.too_many_items = Some(items),
                    false => self.undecided = Some(items),
                }
                return Ok(());
            }
        };
        self.undecided = None;
        // Before the first pass, nodes of the graph were in use that are not in use between later passes.
        let before = if self.passes.is_empty() {
            0
        } else {
            self.between
        };
        let left = memory::live(probe.device)?;
        self.between = before.max(recorded.run.start).max(left);
        let mut pass = PassProfile::of(items, &recorded);
        let fewer = self.below(items).and_then(|pass| pass.curve.as_ref());
        if let (Some(curve), Some(fewer)) = (&mut pass.curve, fewer) {
            curve.calibrate_from(fewer);
        }
        self.passes.push(pass);
        self.passes.sort_by_key(|pass| pass.items);
        Ok(())
    }

    /// Runs the dry run that proves a pass over `items` with these blocks, and stores its bytes.
    pub(super) fn prove<M: Module, L: Loss, F: Fn(&M, usize) -> L>(
        &mut self,
        probe: &mut Probe<'_, M, F>,
        items: usize,
        kept: &BlockChoice,
    ) -> Result<(), PlanError> {
        let pass = self.passes.iter_mut().find(|pass| pass.items == items);
        let pass = pass.expect("it was chosen from them");
        let curve = pass.curve.as_ref();
        let expected = Forecast {
            in_pass: kept.in_pass,
            most: kept.in_pass,
            stretch: pass.run.stretch,
            rise: curve.map_or(pass.run.rise, |curve| curve.rise(&kept.keep)),
        };
        let in_pass = probe.prove(items, &kept.keep, expected)?;
        let limit = probe.available.saturating_sub(pass.run.start);
        pass.note(kept.keep.clone(), in_pass.ok(), limit);
        match in_pass {
            Ok(_) => self.between = self.between.max(memory::live(probe.device)?),
            Err(stopped) => self.note_stop(stopped),
        }
        Ok(())
    }

    fn note_stop(&mut self, Stopped { bytes, .. }: Stopped) {
        self.stopped_at = Some(self.stopped_at.map_or(bytes, |least| least.min(bytes)));
    }
}
