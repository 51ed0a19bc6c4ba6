//! All that is known of the trainings of a model.

use crate::config::FusedConfig;

use super::choice::Ways;
use super::expected::Outlook;
use super::ladder::Ladder;
use super::level::Level;
use super::variant::{Footing, Formats, Variant};

/// The margin where each byte is counted: what threads compute at once differs from run to run.
pub(super) const AT_ONCE: f64 = 1.01;

/// The margin where the device is looked at between kernels only.
pub(super) const APART: f64 = 1.25;

/// What was measured of a model, and what its trainings are reckoned with.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// Items in a step.
    pub(super) batch: usize,
    /// Bytes that it was measured within.
    pub(super) budget: usize,
    /// How it is trained beside.
    pub(super) config: FusedConfig,
    /// Those of the rungs, in their order.
    pub(super) levels: Vec<Level>,
    /// Whether the device has memory of its own, and tells of it now and then only.
    pub(super) apart: bool,
    /// What a pass is taken to hold, in parts of what was measured.
    pub(super) margin: f64,
    pub(super) variants: Vec<Variant>,
    /// Weights that did not fit, and the bytes that they would have taken, with what was there before.
    pub(super) too_large: Vec<(Footing, usize)>,
    /// Why weights in bf16 can't be.
    pub(super) refused_bf16: Option<String>,
}

impl Facts {
    /// What the rungs stand on, in their order.
    pub(super) fn footings(&self) -> Vec<Footing> {
        let mut footings = Vec::new();
        for footing in self.levels.iter().map(Level::footing) {
            if !footings.contains(&footing) {
                footings.push(footing);
            }
        }
        footings
    }

    /// The rungs on this footing.
    pub(super) fn levels_on(&self, footing: Footing) -> impl Iterator<Item = &Level> {
        let levels = self.levels.iter();
        levels.filter(move |level| level.footing() == footing)
    }

    /// What states and weights may be kept in on this footing.
    pub(super) fn formats(&self, footing: Footing) -> Vec<Formats> {
        let mut formats: Vec<_> = self.levels_on(footing).map(Level::formats).collect();
        formats.dedup();
        formats
    }

    /// The least that a training on this footing holds beside a pass.
    pub(super) fn least_beside(&self, footing: Footing) -> usize {
        let levels = self.levels_on(footing);
        let ways = levels.filter_map(|level| self.ways(level, Outlook::Seen));
        let beside = ways.map(|ways| ways.beside_a_pass());
        beside.min().unwrap_or(0)
    }

    /// The model on this footing, if it was measured.
    pub(super) fn variant(&self, footing: Footing) -> Option<&Variant> {
        let mut variants = self.variants.iter();
        variants.find(|variant| variant.footing == footing)
    }

    /// How `budget` is reckoned with.
    pub(super) fn outlook(&self, budget: usize) -> Outlook {
        if budget < self.budget {
            Outlook::Untried
        } else {
            Outlook::Seen
        }
    }

    /// The rungs, from fused training alone on, for `budget` bytes.
    pub(super) fn ladder(&self, budget: usize) -> Ladder {
        let mut ladder = Ladder {
            budget,
            batch: self.batch,
            stock: self.variants.first().and_then(Variant::with_stock),
            rungs: Vec::new(),
            taken: None,
            estimated: self.apart,
        };
        for level in &self.levels {
            let ways = self.ways(level, self.outlook(budget));
            let ways = ways.as_ref();
            let fit = ways.and_then(|ways| ways.cheapest(budget));
            let fits = fit.is_some() && ladder.taken.is_none();
            // Beyond what was taken, a rung shows what it would bring.
            let shown = match ladder.taken {
                None => fit.or_else(|| ways?.least()),
                Some(_) => ways.and_then(Ways::at_most).or(fit),
            };
            let rung = shown.map(|choice| choice.rung());
            let Some(rung) = rung.or_else(|| self.unmeasured(level)) else {
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
}
