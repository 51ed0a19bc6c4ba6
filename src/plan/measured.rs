use std::fmt::{Display, Formatter};

use crate::gradient_checkpointing::GradientCheckpointingConfig;
use crate::optim::{StateFormat, WeightFormat};
use crate::parameters::ModelKey;

use super::budget::Budget;
use super::choice::{Choice, Facts, Level, in_micros};
use super::climb::AT_FIRST;
use super::error::PlanError;
use super::ladder::{Fidelity, Ladder, Rung};
use super::optimizer::PlannedOptimizer;
use super::pass::Kept;
use super::plan::Plan;
use super::technique::Technique;
use super::width::{Footing, Formats, Sums, Width};

/// What a training of a model holds, as [`Planner::measure`](super::Planner::measure) has found it.
///
/// Budgets can be tried without new runs. It prints as the ladder of the budget that was measured within.
#[derive(Clone, Debug)]
pub struct Measured<O> {
    key: ModelKey,
    pub(super) budget: usize,
    order: Vec<Technique>,
    optimizer: O,
    /// Whether the device has memory of its own, and tells of it now and then only.
    apart: bool,
    pub(super) facts: Facts,
    /// Bytes that the smallest weights would take, with what was there before.
    pub(super) least_of_weights: usize,
    /// Why weights in bf16 can't be.
    refused_bf16: Option<String>,
}

/// The margin where each byte is counted: what threads compute at once differs from run to run.
const AT_ONCE: f64 = 1.01;

/// The margin where the device is looked at between kernels only.
const APART: f64 = 1.25;

impl<O: PlannedOptimizer> Measured<O> {
    /// Nothing yet; of the techniques in `order`, those that `optimizer` and the device allow.
    pub(super) fn new(
        key: ModelKey,
        budget: usize,
        order: &[Technique],
        optimizer: O,
        apart: bool,
        facts: Facts,
    ) -> Self {
        let formats = (Some(StateFormat::Bits8), Some(WeightFormat::Split24));
        let has_formats = optimizer.formatted(formats.0, formats.1).is_some();
        let takes_sums = optimizer.in_state().is_ok();
        let can = |it: &Technique| match it {
            Technique::SumsInState => takes_sums,
            it if it.waits().is_some() => apart,
            it if it.states().is_some() || it.weights().is_some() => has_formats,
            _ => true,
        };
        let margin = if apart { APART } else { AT_ONCE };
        Self {
            key,
            budget,
            order: order.iter().copied().filter(can).collect(),
            optimizer,
            apart,
            facts: Facts { margin, ..facts },
            least_of_weights: 0,
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
        match self.best(budget) {
            Some((level, choice)) => Ok(self.plan(&level, &choice, budget)),
            None => Err(self.nothing_fits(budget)),
        }
    }

    fn plan(&self, level: &Level, choice: &Choice, budget: usize) -> Plan<O> {
        let width = &self.facts.widths[choice.width];
        let config = self.facts.config.clone();
        let blocks = GradientCheckpointingConfig {
            keep_activations: choice.kept.keep.clone(),
            ..config.gradient_checkpointing.clone()
        };
        let optimizer = self.optimizer.formatted(level.states, level.weights);
        Plan {
            config: config
                .with_gradient_checkpointing(blocks)
                .with_offload(level.offload()),
            optimizer: optimizer.unwrap_or_else(|| self.optimizer.clone()),
            weights: width.footing.dtype(),
            batch: width.passes[choice.pass].items,
            accumulation: choice.accumulation,
            sums_in_state: level.sums_in_state(choice),
            device_bytes: choice.device,
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
            stock: self.stock(),
            rungs: Vec::new(),
            taken: None,
            estimated: self.apart,
        };
        for level in self.levels() {
            let fit = self.facts.choice(&level, budget);
            let fits = fit.is_some() && ladder.taken.is_none();
            // Beyond what was taken, a rung shows what it would bring.
            let shown = match ladder.taken {
                None => fit.or_else(|| self.facts.least(&level)),
                Some(_) => self.facts.at_most(&level).or(fit),
            };
            let Some(choice) = shown else { continue };
            let rung = Rung {
                name: level.name(&choice),
                device_bytes: choice.device,
                host_bytes: choice.host,
                seconds: choice.seconds,
                fidelity: level.fidelity(&choice),
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

    /// A training with stock Burn, if it was measured.
    fn stock(&self) -> Option<Rung> {
        let width = self.facts.widths.first()?;
        let (run, states) = (width.stock?, width.states_in((None, None))?);
        let after = run.start + width.gradients() + states.update;
        Some(Rung {
            name: "stock Burn".to_string(),
            device_bytes: run.peak.max(after) + states.sum(),
            host_bytes: 0,
            seconds: in_micros(run.seconds + states.seconds),
            fidelity: Fidelity::Exact,
        })
    }

    /// Learns from a step of `plan`, after which the device has reserved so many `bytes` (of `Device::memory_pool_usage`), or after which
    /// the peak of the process was so high: another [`choose`](Self::choose) reckons with it.
    pub fn have_seen(&mut self, plan: &Plan<O>, bytes: usize) {
        let planned = plan.device_bytes.max(1) as f64;
        self.facts.margin *= bytes as f64 / planned;
        if !self.apart {
            self.facts.margin = self.facts.margin.max(AT_ONCE);
        }
    }

    /// The first level of which something fits, and what.
    fn best(&self, budget: usize) -> Option<(Level, Choice)> {
        let mut levels = self.levels();
        levels.find_map(|level| {
            let choice = self.facts.choice(&level, budget)?;
            Some((level, choice))
        })
    }

    /// Fused training alone, and then with one technique more each time.
    fn levels(&self) -> impl Iterator<Item = Level> {
        (0..=self.order.len()).map(|count| Level::of(&self.order[..count]))
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

    /// Bytes without which no pass with weights of this footing is tried.
    fn begins(&self, width: &Width) -> usize {
        width.left + 2 * width.largest() + AT_FIRST + self.least_beside(width)
    }

    /// The least that a training with weights of this footing holds beside a pass.
    pub(super) fn least_beside(&self, width: &Width) -> usize {
        let levels = self.levels().filter(|it| it.footing() == width.footing);
        let beside = levels.filter_map(|level| {
            let offload = level.offload();
            width.beside(
                level.formats(),
                Sums::None,
                &self.facts.config,
                offload.as_ref(),
            )
        });
        beside.map(|beside| beside.device).min().unwrap_or(0)
    }

    pub(super) fn fits(&self) -> bool {
        self.best(self.budget).is_some()
    }

    pub(super) fn refuse_bf16(&mut self, reason: &str) {
        // What was measured until then is not to be trusted.
        self.facts.widths.retain(|width| !width.footing.in_bf16);
        self.refused_bf16 = Some(reason.to_string());
    }

    /// A choice of blocks for the budget that no pass was run with: which pass, and the blocks.
    pub(super) fn untried(&self, width: usize, most: usize) -> Option<(usize, Kept)> {
        let (_, choice) = self.best(self.budget)?;
        let pass = &self.facts.widths[choice.width].passes[choice.pass];
        let is_new = choice.width == width && !pass.knows(&choice.kept) && pass.tried() < most;
        is_new.then_some((choice.pass, choice.kept))
    }

    fn nothing_fits(&self, budget: usize) -> PlanError {
        let least = self.levels().filter_map(|level| self.facts.least(&level));
        let least = least.map(|choice| choice.device).min();
        // Of weights that were not measured, what a pass would begin with.
        let widths = &self.facts.widths;
        let begins = widths.iter().map(|width| self.begins(width)).min();
        let begins = begins.unwrap_or(self.least_of_weights);
        PlanError::NothingFits {
            budget,
            least: least.unwrap_or(begins).max(budget + 1),
            advice: self.advice(budget).join(" "),
        }
    }

    /// What would help if nothing fits.
    fn advice(&self, budget: usize) -> Vec<String> {
        let mut advice = Vec::new();
        let widths = &self.facts.widths;
        let in_bf16 = widths.iter().any(|width| width.footing.in_bf16);
        if self.order.iter().any(|it| it.weights().is_some()) && !in_bf16 {
            if let Some(reason) = &self.refused_bf16 {
                advice.push(format!("Weights in bf16 can't be: {reason}."));
            } else if budget < self.budget {
                let not_measured = "Weights in bf16 were not measured: measure with this budget.";
                advice.push(not_measured.to_string());
            }
        }
        if self.facts.batch == 1 {
            advice.push("A batch of one item can't be split.".to_string());
        } else if !self.order.contains(&Technique::MicroBatches) {
            advice.push("Micro-batches are not allowed by the order.".to_string());
        }
        let mut passes = widths.iter().flat_map(|width| &width.passes).peekable();
        if passes.peek().is_some() && passes.all(|pass| pass.twice.is_none()) {
            advice.push("No block of the model is under `gradient_checkpointing`.".to_string());
        }
        advice.push("A shorter or smaller item, a smaller model, or an optimizer with less state would help.".to_string());
        advice
    }
}

impl<O: PlannedOptimizer> Display for Measured<O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.ladder(self.budget).fmt(f)
    }
}
