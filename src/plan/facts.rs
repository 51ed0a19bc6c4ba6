//! All that is known of the trainings of a model.

use crate::config::FusedConfig;

use super::expected::Outlook;
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
}
