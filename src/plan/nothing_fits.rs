//! What is told of what does not fit.

use super::error::PlanError;
use super::facts::Facts;
use super::pass::Pass;

impl Facts {
    /// By how many bytes the smallest way misses, and what would help.
    pub(super) fn nothing_fits(&self, budget: usize) -> PlanError {
        let rungs = self.ladder(budget).rungs.into_iter();
        let least = rungs.map(|rung| rung.device_bytes).min().unwrap_or(0);
        PlanError::NothingFits {
            budget,
            least: least.max(budget + 1),
            advice: self.advice(budget),
        }
    }

    fn advice(&self, budget: usize) -> String {
        let mut advice = Vec::new();
        let may_be_in_bf16 = self.levels.iter().any(|level| level.weights.is_some());
        let are_measured = self.variants.iter().any(|variant| variant.footing.in_bf16);
        if let Some(reason) = &self.refused_bf16 {
            advice.push(format!("Weights in bf16 can't be: {reason}."));
        } else if budget < self.budget && may_be_in_bf16 && !are_measured {
            advice.push("Weights in bf16 were not measured: measure with this budget.".into());
        }
        if self.batch == 1 {
            advice.push("A batch of one item can't be split.".into());
        } else if !self.levels.iter().any(|level| level.parts) {
            advice.push("Micro-batches are not allowed by the order.".into());
        }
        let passes = self.variants.iter().flat_map(|variant| &variant.passes);
        let mut passes = passes.peekable();
        if passes.peek().is_some() && passes.all(Pass::has_no_blocks) {
            advice.push("No block of the model is under `gradient_checkpointing`.".into());
        }
        advice.push("A shorter or smaller item, a smaller model, or an optimizer with less state would help.".into());
        advice.join(" ")
    }
}
