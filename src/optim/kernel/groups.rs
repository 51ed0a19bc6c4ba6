//! An update of elements in formats, a group at a time: what is stored in fewer bits is read into f32, updated and
//! written again.

use super::super::format::{GROUP, Noise, threshold};
use super::super::rule::UpdateRule;
use super::group_slices::{StateSlice, Weights};

/// Where the gradient of a group comes from.
pub(super) trait GradientSource: Sync {
    /// Reads the elements from the `start`-th on.
    fn read(&self, start: usize, into: &mut [f32]);
}

/// The groups of a range of elements.
pub(super) struct Groups<'a, const S: usize> {
    /// The index of the first element.
    start: usize,
    weights: Weights<'a>,
    states: [StateSlice<'a>; S],
}

impl<'a, const S: usize> Groups<'a, S> {
    pub(super) fn new(weights: Weights<'a>, states: [StateSlice<'a>; S]) -> Self {
        Self {
            start: 0,
            weights,
            states,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.weights.len()
    }

    /// Two halves; `middle` is a multiple of a group.
    #[cfg(feature = "flex")]
    pub(super) fn split_at(self, middle: usize) -> [Self; 2] {
        let mut halves = self.states.map(|state| state.split_at(middle).map(Some));
        let mut take = |half: usize| {
            halves
                .each_mut()
                .map(|halves| halves[half].take().expect("each is taken once"))
        };
        let [left_states, right_states] = [take(0), take(1)];
        let [left, right] = self.weights.split_at(middle);
        [
            Self {
                start: self.start,
                weights: left,
                states: left_states,
            },
            Self {
                start: self.start + middle,
                weights: right,
                states: right_states,
            },
        ]
    }

    /// Updates all groups. (Plain loops: closures are compiled for any processor.)
    #[inline(always)]
    pub(super) fn update(
        mut self,
        rule: &impl UpdateRule<S>,
        gradient: &impl GradientSource,
        noise: Noise,
    ) {
        let all = self.len();
        for group in 0..all.div_ceil(GROUP) {
            let start = group * GROUP;
            let length = usize::min(GROUP, all - start);
            let mut gradients = [0.0; GROUP];
            gradient.read(self.start + start, &mut gradients[..length]);
            let mut random = [0; GROUP];
            for lane in 0..GROUP {
                let index = (self.start + start + lane) as u32;
                random[lane] = noise.bits(index, gradients[lane]);
            }
            let mut weights = self.weights.load(start, length);
            let mut rows = [[0.0; GROUP]; S];
            let mut is_broken = false;
            for (row, state) in rows.iter_mut().zip(&self.states) {
                *row = state.load(group, length);
                is_broken |= state.is_broken(group);
            }
            rule.update_lanes(&mut weights, &gradients, &mut rows);
            for row in &mut rows {
                // What fills up a last group has no scale of its own.
                row[length..].fill(0.0);
            }
            if is_broken {
                // Lion takes a sign, and NaN has none.
                weights = [f32::NAN; GROUP];
            }
            for (index, (row, state)) in rows.iter().zip(&mut self.states).enumerate() {
                let mut thresholds = [0.0; GROUP];
                for lane in 0..GROUP {
                    // A second state has the other half of the random bits.
                    thresholds[lane] = threshold(random[lane] >> (16 * (index & 1)));
                }
                state.store(group, length, row, &thresholds);
            }
            for random in &mut random {
                *random = Noise::more(*random);
            }
            self.weights.store(start, length, &weights, &random);
        }
    }
}
