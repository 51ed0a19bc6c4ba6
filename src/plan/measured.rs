use std::borrow::Cow;
use std::fmt::{Display, Formatter};

use burn::tensor::Device;

use super::budget::Budget;
use super::choice::{AT_ONCE, Choice, Facts};
use super::error::PlanError;
use super::ladder::{Ladder, Rung, in_millionths};
use super::level::Level;
use super::optimizer::PlannedOptimizer;
use super::pass::Pass;
use super::plan::Plan;
use super::technique::Technique;
use super::width::{Beside, Footing, Formats, Sums, Width};
use crate::optim::{StateFormat, WeightFormat};
use crate::parameters::ModelKey;
use crate::pass::GradientCheckpointingConfig;
use crate::replica::Ownership;

/// What a training of a model holds, as [`Planner::measure`](super::Planner::measure) has found it.
///
/// Budgets can be tried without new runs. It prints as the ladder of the budget that was measured within.
#[derive(Clone, Debug)]
pub struct Measured<O> {
    key: ModelKey,
    pub(super) budget: usize,
    order: Vec<Technique>,
    optimizer: O,
    device: Device,
    /// Whether the device has memory of its own, and tells of it now and then only.
    pub(super) apart: bool,
    /// Number of devices.
    ranks: usize,
    pub(super) facts: Facts,
    /// Weights that did not fit, and the bytes that they would have taken, with what was there before.
    pub(super) too_large: Vec<(Footing, usize)>,
    /// Why weights in bf16 can't be.
    refused_bf16: Option<String>,
}

/// The margin where the device is looked at between kernels only.
pub(super) const APART: f64 = 1.25;

impl<O: PlannedOptimizer> Measured<O> {
    /// Nothing yet; of the techniques in `order`, those that `optimizer` and the device allow.
    pub(super) fn new(
        key: ModelKey,
        budget: usize,
        order: &[Technique],
        optimizer: O,
        device: Device,
        ranks: usize,
        facts: Facts,
    ) -> Self {
        let apart = device.memory_pool_usage().is_some();
        let formats = (Some(StateFormat::Bits8), Some(WeightFormat::Split24));
        let has_formats = optimizer.formatted(formats.0, formats.1).is_some();
        let takes_sums = optimizer.in_state().is_ok();
        let can = |it: &Technique| match it {
            Technique::SumsInState => takes_sums,
            // Those of one memory take as much as one.
            Technique::Ranks => apart && ranks > 1,
            it if it.waits().is_some() => apart,
            it if it.states().is_some() || it.weights().is_some() => has_formats,
            _ => true,
        };
        Self {
            key,
            budget,
            order: order.iter().copied().filter(can).collect(),
            optimizer,
            device,
            apart,
            ranks,
            facts: Facts {
                margin: if apart { APART } else { facts.margin },
                ..facts
            },
            too_large: Vec::new(),
            refused_bf16: None,
        }
    }

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
        match self.best(budget) {
            Some((level, choice)) => Ok(self.plan(&level, &choice, budget)),
            None => Err(self.nothing_fits(budget)),
        }
    }

    fn plan(&self, level: &Level, choice: &Choice, budget: usize) -> Plan<O> {
        let part = choice.part;
        let width = &self.facts.widths[part.width];
        let config = self.facts.config.clone();
        let blocks = GradientCheckpointingConfig {
            keep_activations: choice.kept.keep.clone(),
            ..config.gradient_checkpointing.clone()
        };
        let optimizer = self.optimizer.formatted(level.states, level.weights);
        let ownership = if part.ranks > 1 {
            Ownership::BySize
        } else {
            config.ownership
        };
        Plan {
            config: config
                .with_gradient_checkpointing(blocks)
                .with_ownership(ownership)
                .with_offload(level.offload()),
            optimizer: optimizer.unwrap_or_else(|| self.optimizer.clone()),
            weights: width.footing.dtype(),
            ranks: part.ranks,
            batch: width.passes[part.pass].items,
            accumulation: part.accumulation,
            sums_in_state: level.sums_in_state(part),
            device_bytes: choice.device,
            pass_bytes: choice.kept.run.in_pass(),
            margin: self.facts.margin,
            host_bytes: choice.host,
            model: self.key,
            ladder: self.ladder(budget),
        }
    }

    /// The rungs, from fused training alone on, for `budget` bytes.
    pub fn ladder(&self, budget: usize) -> Ladder {
        let mut ladder = Ladder {
            budget,
            batch: self.facts.batch,
            stock: self.facts.widths.first().and_then(Width::with_stock),
            rungs: Vec::new(),
            taken: None,
            estimated: self.apart,
        };
        let facts = self.facts_for(budget);
        for level in self.levels() {
            let fit = facts.choice(&level, budget);
            let fits = fit.is_some() && ladder.taken.is_none();
            // Beyond what was taken, a rung shows what it would bring.
            let shown = match ladder.taken {
                None => fit.or_else(|| facts.least(&level)),
                Some(_) => facts.at_most(&level).or(fit),
            };
            let rung = shown.map(|choice| level.rung(&choice));
            let Some(rung) = rung.or_else(|| self.unmeasured(&level)) else {
                continue;
            };
            if ladder.rungs.iter().all(|other| other.name != rung.name) {
                ladder.rungs.push(rung);
                if fits {
                    ladder.taken = Some(ladder.rungs.len() - 1);
                }
            }
        }
        ladder
    }

    /// A rung of which no pass has come to its end: what one needs at least.
    fn unmeasured(&self, level: &Level) -> Option<Rung> {
        let footing = level.footing();
        let bytes = match self.facts.place(footing) {
            Some(place) => {
                let width = &self.facts.widths[place];
                let least = width.least_in_pass() + self.beside(width, level)?.device;
                width.passes.is_empty().then_some(least)?
            }
            None => self.too_large.iter().find(|(it, _)| *it == footing)?.1,
        };
        Some(level.unmeasured(bytes))
    }

    /// Learns from a step of `plan`, after which the device has reserved so many `bytes` (of `Device::memory_pool_usage`), or after which
    /// the peak of the process was so high: another [`choose`](Self::choose) reckons with it.
    pub fn have_seen(&mut self, plan: &Plan<O>, bytes: usize) {
        let in_pass = plan.pass_bytes.max(1) as f64;
        let beside = plan.device_bytes as f64 - in_pass * plan.margin;
        let least = if self.apart { 1.0 } else { AT_ONCE };
        let margin = (bytes as f64 - beside) / in_pass;
        self.facts.margin = in_millionths(margin.max(least));
    }

    /// The first level of which something fits, and what.
    pub(super) fn best(&self, budget: usize) -> Option<(Level, Choice)> {
        self.best_of(&self.facts_for(budget), budget)
    }

    fn facts_for(&self, budget: usize) -> Cow<'_, Facts> {
        match budget < self.budget {
            true => Cow::Owned(self.facts.untried()),
            false => Cow::Borrowed(&self.facts),
        }
    }

    /// The same, if these were the facts.
    pub(super) fn best_of(&self, facts: &Facts, budget: usize) -> Option<(Level, Choice)> {
        let mut levels = self.levels();
        levels.find_map(|level| Some((level.clone(), facts.choice(&level, budget)?)))
    }

    /// Fused training alone, and then with one technique more each time.
    fn levels(&self) -> impl Iterator<Item = Level> {
        (0..=self.order.len()).map(|count| Level::of(&self.order[..count], self.ranks))
    }

    /// What the levels stand on, in their order.
    pub(super) fn footings(&self) -> Vec<Footing> {
        let mut footings = Vec::new();
        for footing in self.levels().map(|level| level.footing()) {
            if !footings.contains(&footing) {
                footings.push(footing);
            }
        }
        footings
    }

    /// What states and weights may be kept in on this footing.
    pub(super) fn formats(&self, footing: Footing) -> Vec<Formats> {
        let levels = self.levels().filter(|level| level.footing() == footing);
        let mut formats: Vec<_> = levels.map(|level| level.formats()).collect();
        formats.dedup();
        formats
    }

    /// The least that a training with weights of this footing holds beside a pass.
    pub(super) fn least_beside(&self, width: &Width) -> usize {
        let levels = self.levels().filter(|it| it.footing() == width.footing);
        let beside = levels.filter_map(|level| self.beside(width, &level));
        beside.map(|beside| beside.device).min().unwrap_or(0)
    }

    /// What is held beside a pass without micro-batches, on as many ranks as there may be.
    fn beside(&self, width: &Width, level: &Level) -> Option<Beside> {
        let (formats, offload) = (level.formats(), level.offload());
        let config = &self.facts.config;
        width.beside(formats, Sums::None, config, offload.as_ref(), level.ranks)
    }

    pub(super) fn refuse_bf16(&mut self, reason: &str) {
        // What was measured until then is not to be trusted.
        self.facts.widths.retain(|width| !width.footing.in_bf16);
        self.refused_bf16 = Some(reason.to_string());
    }

    fn nothing_fits(&self, budget: usize) -> PlanError {
        let rungs = self.ladder(budget).rungs.into_iter();
        let least = rungs.map(|rung| rung.device_bytes).min().unwrap_or(0);
        PlanError::NothingFits {
            budget,
            least: least.max(budget + 1),
            advice: self.advice(budget),
        }
    }

    /// What would help if nothing fits.
    fn advice(&self, budget: usize) -> String {
        let mut advice = Vec::new();
        let widths = &self.facts.widths;
        if let Some(reason) = &self.refused_bf16 {
            advice.push(format!("Weights in bf16 can't be: {reason}."));
        } else if budget < self.budget
            && self.order.iter().any(|it| it.weights().is_some())
            && widths.iter().all(|width| !width.footing.in_bf16)
        {
            advice.push("Weights in bf16 were not measured: measure with this budget.".into());
        }
        if self.facts.batch == 1 {
            advice.push("A batch of one item can't be split.".into());
        } else if !self.order.contains(&Technique::MicroBatches) {
            advice.push("Micro-batches are not allowed by the order.".into());
        }
        let mut passes = widths.iter().flat_map(|width| &width.passes).peekable();
        if passes.peek().is_some() && passes.all(Pass::has_no_blocks) {
            advice.push("No block of the model is under `gradient_checkpointing`.".into());
        }
        advice.push("A shorter or smaller item, a smaller model, or an optimizer with less state would help.".into());
        advice.join(" ")
    }
}

impl<O: PlannedOptimizer> Display for Measured<O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.ladder(self.budget).fmt(f)
    }
}
