use std::fmt::{Display, Formatter};

use burn::tensor::FloatDType;

use crate::config::FusedConfig;
use crate::offload::{Offload, OffloadConfig};
use crate::optim::{StateFormat, WeightFormat};
use crate::parameters::ModelKey;

use super::budget::Budget;
use super::choice::{Choice, Level};
use super::error::PlanError;
use super::ladder::Ladder;
use super::optimizer::PlannedOptimizer;
use super::pass::{Kept, Run};
use super::plan::Plan;
use super::technique::Technique;
use super::width::{Formats, Width};

/// What a training of a model holds, as [`Planner::measure`](super::Planner::measure) has found it.
///
/// Budgets can be tried without new runs. It prints as the ladder of the budget that was measured within.
#[derive(Clone, Debug)]
pub struct Measured<O> {
    pub(super) key: ModelKey,
    pub(super) batch: usize,
    pub(super) budget: usize,
    pub(super) order: Vec<Technique>,
    pub(super) optimizer: O,
    pub(super) config: FusedConfig,
    /// Whether the device has memory of its own, and tells of it now and then only.
    pub(super) apart: bool,
    /// What a pass is taken to hold, in parts of what was measured.
    pub(super) margin: f64,
    /// Bytes of the weights in bf16, and what was there before.
    pub(super) least_of_weights: usize,
    pub(super) widths: Vec<Width>,
    /// Why weights in bf16 can't be.
    refused_bf16: Option<String>,
}

/// The margin where each byte is counted: what threads compute at once differs from run to run.
const AT_ONCE: f64 = 1.01;

/// The margin where the device is looked at between kernels only.
const APART: f64 = 1.25;

impl<O: PlannedOptimizer> Measured<O> {
    pub(super) fn new(
        key: ModelKey,
        batch: usize,
        budget: usize,
        order: Vec<Technique>,
        optimizer: O,
        config: FusedConfig,
        apart: bool,
    ) -> Self {
        let has_formats = optimizer
            .formatted(Some(StateFormat::Bits8), Some(WeightFormat::Split24))
            .is_some();
        let can = |it: &Technique| {
            let is_format = it.states().is_some() || it.weights().is_some();
            (has_formats || !is_format) && (apart || !it.waits())
        };
        Self {
            key,
            batch,
            budget,
            order: order.into_iter().filter(can).collect(),
            optimizer,
            config,
            apart,
            margin: if apart { APART } else { AT_ONCE },
            least_of_weights: 0,
            widths: Vec::new(),
            refused_bf16: None,
        }
    }

    /// The plan that costs least, in the [order](super::Planner::with_order) of the techniques, and fits `budget`.
    ///
    /// Only what was measured is chosen from: a larger budget than that of [`measure`](super::Planner::measure) may have room for larger
    /// micro-batches, and a smaller one takes weights in bf16 only if they were measured.
    ///
    /// # Errors
    ///
    /// If the budget is zero or not known, or nothing fits: the error says by how many bytes, and what would help.
    pub fn choose(&self, budget: impl Into<Budget>) -> Result<Plan<O>, PlanError> {
        let budget = match budget.into() {
            Budget::Machine if self.apart => {
                return Err(PlanError::UnknownMachine {
                    reason: "the device tells what it uses, and not what it has".to_string(),
                });
            }
            budget => budget.bytes(&Default::default())?,
        };
        let Some((level, choice)) = self.best(budget) else {
            return Err(self.nothing_fits(budget));
        };
        Ok(Plan::new(self, &level, &choice, self.ladder(budget)))
    }

    /// The rungs, from fused training alone on, for `budget` bytes.
    pub fn ladder(&self, budget: usize) -> Ladder {
        Ladder::new(self, budget)
    }

    /// Learns from a step of `plan`, after which the device has reserved so many `bytes` (of `Device::memory_pool_usage`), or after which
    /// the peak of the process was so high: another [`choose`](Self::choose) reckons with it.
    pub fn have_seen(&mut self, plan: &Plan<O>, bytes: usize) {
        let planned = plan.device_bytes.max(1) as f64;
        self.margin *= bytes as f64 / planned;
        if !self.apart {
            self.margin = self.margin.max(AT_ONCE);
        }
    }

    /// The first level of which something fits, and what.
    pub(super) fn best(&self, budget: usize) -> Option<(Level, Choice)> {
        let mut levels = self.levels().into_iter();
        levels.find_map(|level| Some((level.clone(), self.choice(&level, budget)?)))
    }

    /// Fused training alone, and then with one technique more each time.
    pub(super) fn levels(&self) -> Vec<Level> {
        let count = self.order.len();
        (0..=count)
            .map(|count| Level::of(&self.order[..count]))
            .collect()
    }

    /// Passes that are alike differ by this part.
    pub(super) fn have_spread(&mut self, spread: f64) {
        let least = if self.apart { APART } else { AT_ONCE };
        self.margin = self.margin.max(least + spread);
    }

    pub(super) fn fits(&self) -> bool {
        self.best(self.budget).is_some()
    }

    pub(super) fn allows_bf16(&self) -> bool {
        self.order.iter().any(|it| it.weights().is_some())
    }

    pub(super) fn refuse_bf16(&mut self, reason: &str) {
        // What was measured until then is not to be trusted.
        self.widths.retain(|width| width.dtype.is_none());
        self.refused_bf16 = Some(reason.to_string());
    }

    /// What states and weights of this type may be kept in.
    pub(super) fn formats(&self, dtype: Option<FloatDType>) -> Vec<Formats> {
        let states = self.order.iter().filter_map(|it| it.states());
        let states: Vec<_> = [None].into_iter().chain(states.map(Some)).collect();
        let weights: Vec<_> = match dtype {
            None => vec![None],
            Some(_) => self
                .order
                .iter()
                .filter_map(|it| it.weights())
                .map(Some)
                .collect(),
        };
        let pairs = states
            .iter()
            .flat_map(|states| weights.iter().map(|weights| (*states, *weights)));
        pairs.collect()
    }

    /// What waits on the host, as a step is configured.
    pub(super) fn offload(&self, level: &Level) -> Option<OffloadConfig> {
        let offload = match level.waits? {
            Technique::HostStates => Offload::States,
            _ => Offload::Updates,
        };
        Some(OffloadConfig::new(offload))
    }

    /// A choice of blocks for the budget that no pass was run with: which pass, and the blocks.
    pub(super) fn untried(&self, width: usize) -> Option<(usize, Kept)> {
        const MOST: usize = 8;
        let (_, choice) = self.best(self.budget)?;
        let pass = &self.widths[choice.width].passes[choice.pass];
        let keep = &choice.kept.keep;
        let some = keep.iter().any(|keep| *keep);
        let all = keep.iter().all(|keep| *keep);
        let known = !some || all && pass.kept.is_some();
        let is_new =
            !known && pass.tried.iter().all(|it| it.keep != *keep) && pass.tried.len() < MOST;
        (choice.width == width && is_new).then_some((choice.pass, choice.kept))
    }

    /// Measures a pass of stock Burn, if it stays within the budget.
    pub(super) fn measure_stock(
        &mut self,
        width: usize,
        measure: impl FnOnce(usize) -> Result<Run, PlanError>,
    ) -> Result<(), PlanError> {
        let width = &mut self.widths[width];
        let pass = width.passes.iter().find(|pass| pass.items == self.batch);
        let Some(kept) = pass.and_then(|pass| pass.kept) else {
            return Ok(());
        };
        if width.dtype.is_none() && kept.peak + width.gradients() <= self.budget {
            width.stock = Some(measure(self.batch)?);
        }
        Ok(())
    }

    /// The peak of a training with stock Burn, if it was measured.
    pub(super) fn stock(&self) -> Option<(usize, f64)> {
        let width = self.widths.iter().find(|width| width.dtype.is_none())?;
        let (run, states) = (width.stock?, width.states_in((None, None))?);
        let after = run.start + width.gradients() + states.update;
        let peak = run.peak.max(after) + states.sum();
        Some((peak, run.seconds + states.seconds))
    }

    fn nothing_fits(&self, budget: usize) -> PlanError {
        let levels = self.levels();
        let least = levels.iter().filter_map(|level| self.least(level));
        let least = least.map(|choice| choice.device).min();
        // Of weights that were not measured, what a pass would begin with.
        let begins = self.widths.iter().map(|width| width.begins()).min();
        let begins = begins.unwrap_or(self.least_of_weights);
        let mut advice = Vec::new();
        if self.allows_bf16() && !self.widths.iter().any(|width| width.dtype.is_some()) {
            advice.push(match &self.refused_bf16 {
                Some(reason) => format!("Weights in bf16 can't be: {reason}."),
                None if self.least_of_weights > self.budget => String::new(),
                None => "Weights in bf16 were not measured: measure with this budget.".to_string(),
            });
        }
        let has = |technique| self.order.contains(&technique);
        if self.batch == 1 {
            advice.push("A batch of one item can't be split.".to_string());
        } else if !has(Technique::MicroBatches) {
            advice.push("Micro-batches are not allowed by the order.".to_string());
        }
        let mut passes = self.widths.iter().flat_map(|width| &width.passes);
        let measured = self.widths.iter().any(|width| !width.passes.is_empty());
        if measured && passes.all(|pass| pass.twice.is_none()) {
            advice.push("No block of the model is under `gradient_checkpointing`.".to_string());
        }
        advice.push("A shorter or smaller item, a smaller model, or an optimizer with less state would help.".to_string());
        advice.retain(|sentence| !sentence.is_empty());
        PlanError::NothingFits {
            budget,
            least: least.unwrap_or(begins).max(budget + 1),
            advice: advice.join(" "),
        }
    }
}

impl<O: PlannedOptimizer> Display for Measured<O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.ladder(self.budget).fmt(f)
    }
}
