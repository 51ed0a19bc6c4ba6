use std::fmt::{Display, Formatter};

use burn::tensor::Device;

use super::budget::Budget;
use super::choice::{Choice, Part};
use super::error::PlanError;
use super::facts::{AT_ONCE, Facts};
use super::ladder::{Ladder, in_millionths};
use super::optimizer::PlannedOptimizer;
use super::plan::Plan;
use crate::parameters::ModelKey;
use crate::pass::GradientCheckpointingConfig;
use crate::replica::Ownership;

/// What a training of a model holds, as [`Planner::measure`](super::Planner::measure) has found it.
///
/// Budgets can be tried without new runs. It prints as the ladder of the budget that was measured within.
#[derive(Clone, Debug)]
pub struct Measured<O> {
    pub(super) model: ModelKey,
    pub(super) optimizer: O,
    pub(super) device: Device,
    pub(super) facts: Facts,
}

impl<O: PlannedOptimizer> Measured<O> {
    /// The plan that costs least, in the [order](super::Planner::with_order) of the techniques, and fits `budget`.
    ///
    /// Only what was measured is chosen from: a larger budget than that of [`measure`](super::Planner::measure) may have room for larger
    /// micro-batches, and a smaller one takes weights in bf16 only if they were measured.
    /// For a smaller one it was not tried how few blocks have to run twice, and there may be more of them than it takes.
    ///
    /// # Errors
    ///
    /// If the budget is zero or not known, or nothing fits: the error says by how many bytes, and what would help.
    pub fn choose(&self, budget: impl Into<Budget>) -> Result<Plan<O>, PlanError> {
        let budget = budget.into().bytes(&self.device)?;
        match self.facts.best(budget, self.facts.outlook(budget)) {
            Some(choice) => Ok(self.plan(&choice, budget)),
            None => Err(self.facts.nothing_fits(budget)),
        }
    }

    fn plan(&self, choice: &Choice<'_>, budget: usize) -> Plan<O> {
        let (level, Part { pass, split }) = (choice.level, choice.part);
        let config = level.config(&self.facts.config);
        let blocks = GradientCheckpointingConfig {
            keep_activations: choice.kept.keep.clone(),
            ..config.gradient_checkpointing.clone()
        };
        let ownership = match split.ranks {
            1 => config.ownership,
            _ => Ownership::BySize,
        };
        let optimizer = self.optimizer.formatted(level.states, level.weights);
        Plan {
            config: config
                .with_gradient_checkpointing(blocks)
                .with_ownership(ownership),
            optimizer: optimizer.unwrap_or_else(|| self.optimizer.clone()),
            weights: choice.variant.footing.dtype(),
            ranks: split.ranks,
            batch: pass.items,
            accumulation: split.accumulation,
            sums_in_state: level.sums_in_state(split),
            device_bytes: choice.device,
            pass_bytes: choice.kept.run.in_pass(),
            margin: self.facts.margin,
            host_bytes: choice.host,
            model: self.model,
            ladder: self.ladder(budget),
        }
    }

    /// The rungs, from fused training alone on, for `budget` bytes.
    pub fn ladder(&self, budget: usize) -> Ladder {
        self.facts.ladder(budget)
    }

    /// Learns from a step of `plan`, after which the device has reserved so many `bytes` (of `Device::memory_pool_usage`), or after which
    /// the peak of the process was so high: another [`choose`](Self::choose) reckons with it.
    pub fn have_seen(&mut self, plan: &Plan<O>, bytes: usize) {
        let in_pass = plan.pass_bytes.max(1) as f64;
        let beside = plan.device_bytes as f64 - in_pass * plan.margin;
        let least = if self.facts.apart { 1.0 } else { AT_ONCE };
        let margin = (bytes as f64 - beside) / in_pass;
        self.facts.margin = in_millionths(margin.max(least));
    }
}

impl<O: PlannedOptimizer> Display for Measured<O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.ladder(self.facts.budget).fmt(f)
    }
}
