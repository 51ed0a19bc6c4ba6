//! The ladder of all ways, with what is known of those that were not measured.

use super::choice::Ways;
use super::expected::Outlook;
use super::facts::Facts;
use super::ladder::{Ladder, Rung};
use super::level::Level;
use super::split::Split;
use super::variant::Variant;

impl Facts {
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

    /// A rung of which no pass has come to its end: what one needs at least.
    fn unmeasured(&self, level: &Level) -> Option<Rung> {
        let footing = level.footing();
        let bytes = match self.variant(footing) {
            Some(variant) if variant.passes.is_empty() => {
                variant.least_in_pass() + self.ways(level, Outlook::Seen)?.beside_a_pass()
            }
            Some(_) => return None,
            None => self.too_large.iter().find(|(it, _)| *it == footing)?.1,
        };
        let whole = Split::of(1, 1);
        Some(Rung {
            name: level.name(whole, &[]),
            device_bytes: bytes,
            host_bytes: 0,
            seconds: None,
            fidelity: level.fidelity(whole),
        })
    }
}
