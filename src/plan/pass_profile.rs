//! Measurements and forecasts of passes over one number of items.

use super::curve::ActivationCurve;
use super::pass_bytes::{PassBytes, RecordedPass, SLOW, count_kept};

/// Passes over `items`.
#[derive(Clone, Debug)]
pub(super) struct PassProfile {
    pub(super) items: usize,
    /// The pass whose blocks were all recomputed.
    pub(super) run: PassBytes,
    /// `None` if the pass has no blocks.
    pub(super) curve: Option<ActivationCurve>,
    proofs: Vec<Proof>,
}

/// The result of a dry run with exactly one choice of blocks.
#[derive(Clone, Debug)]
struct Proof {
    keep: Vec<bool>,
    /// `None` if it did not fit.
    in_pass: Option<usize>,
}

/// A choice of the blocks that keep their activations, with the bytes of its pass.
#[derive(Clone, Debug)]
pub(super) struct BlockChoice {
    pub(super) keep: Vec<bool>,
    pub(super) in_pass: usize,
    /// `true` if the bytes were measured by a dry run.
    pub(super) is_proved: bool,
}

impl PassProfile {
    pub(super) fn of(items: usize, recorded: &RecordedPass) -> Self {
        Self {
            items,
            run: recorded.run,
            curve: ActivationCurve::of(recorded),
            proofs: Vec::new(),
        }
    }

    fn blocks(&self) -> usize {
        self.curve.as_ref().map_or(0, ActivationCurve::blocks)
    }

    /// Adds the bytes of a dry run; `None` if it exceeded `limit`.
    pub(super) fn note(&mut self, keep: Vec<bool>, in_pass: Option<usize>, limit: usize) {
        if let Some(curve) = &mut self.curve {
            curve.calibrate(&keep, self.run.start + in_pass.unwrap_or(limit));
        }
        self.proofs.push(Proof { keep, in_pass });
    }

    /// Returns the choice with its measured bytes, or those of the curve; `None` if it is too large.
    fn kept(&self, keep: Vec<bool>) -> Option<BlockChoice> {
        // A superset of blocks that are too large is too large.
        let covers = |proof: &Proof| proof.keep.iter().zip(&keep).all(|(of, keep)| keep >= of);
        let mut too_large = self.proofs.iter().filter(|it| it.in_pass.is_none());
        if too_large.any(covers) {
            return None;
        }
        let proof = self.proofs.iter().find(|proof| proof.keep == keep);
        let proved = proof.and_then(|proof| proof.in_pass);
        let expected = |curve: &ActivationCurve| curve.peak(&keep).saturating_sub(self.run.start);
        let in_pass = proved.unwrap_or_else(|| {
            let expected = self.curve.as_ref().map_or(0, expected);
            expected.max(self.run.in_pass() * usize::from(count_kept(&keep) == 0))
        });
        Some(BlockChoice {
            keep,
            in_pass,
            is_proved: proved.is_some(),
        })
    }

    /// Returns the pass with no recomputed blocks.
    pub(super) fn none_recomputed(&self) -> Option<BlockChoice> {
        self.kept(vec![true; self.blocks()])
    }

    /// Returns the pass whose blocks are all recomputed.
    pub(super) fn all_recomputed(&self) -> Option<BlockChoice> {
        self.kept(vec![false; self.blocks()])
    }

    /// Returns the pass with the fewest recomputed blocks that `fits`. Without `recompute` no block may be recomputed.
    pub(super) fn choose(
        &self,
        recompute: bool,
        fits: impl Fn(usize) -> bool,
    ) -> Option<BlockChoice> {
        let is_small = |kept: &BlockChoice| fits(kept.in_pass);
        let fitting = |keep| self.kept(keep).filter(is_small);
        let is_open = self.proofs.len() < if self.run.seconds > SLOW { 3 } else { 8 };
        let is_allowed = |kept: &BlockChoice| kept.is_proved || is_open;
        let none = self.none_recomputed().filter(is_small).filter(is_allowed);
        if none.is_some() || !recompute {
            return none;
        }
        let proofs = self.proofs.iter().map(|proof| proof.keep.clone());
        let proved = proofs.filter_map(fitting).filter(|kept| kept.is_proved);
        let proved = proved.max_by_key(|kept| count_kept(&kept.keep));
        let mut expected = self.all_recomputed().filter(is_small);
        if let Some(expected) = &mut expected {
            // The last blocks first, because their activations are freed first.
            for index in (0..self.blocks()).rev() {
                let mut keep = expected.keep.clone();
                keep[index] = true;
                if let Some(more) = fitting(keep) {
                    *expected = more;
                }
            }
        }
        let expected = expected.filter(is_allowed);
        let is_enough = |proved: &BlockChoice| {
            let kept = expected.as_ref().map_or(0, |kept| count_kept(&kept.keep));
            count_kept(&proved.keep) >= kept
        };
        proved.clone().filter(is_enough).or(expected).or(proved)
    }
}
