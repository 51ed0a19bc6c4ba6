//! The single pass over memory, on the processor: what lies there as numbers is updated where it lies; the rest is read
//! into numbers, a block at a time, updated, and written again.

use std::array::from_fn;

use burn::tensor::Element;
use bytemuck::{Pod, cast_slice};

use super::super::format::{Column, Dither, GROUP, Noise};
use super::super::rule::{AverageRule, Number, UpdateRule};
use super::super::vectorized::{Loop, vectorized};
use super::gradient::Gradient;

/// Elements of a block, which stays in the first cache. They are few, so that the processor fetches those of the next block
/// while it computes.
pub(super) const BLOCK: usize = 8 * GROUP;
/// Elements that are computed together, in registers.
const LANES: usize = 16;
/// Elements that are worth a thread.
const GRAIN: usize = 64 * BLOCK;

/// A pass over a weight and its states, which a rule is to make.
pub(in crate::optim) struct Pass<'a> {
    pub(super) length: usize,
    pub(super) weight: Column<'a>,
    pub(super) states: Vec<Column<'a>>,
    /// How an average of the weight goes on, if the last of the states is one.
    pub(super) average: Option<AverageRule>,
    pub(super) gradient: Gradient<'a>,
    /// With formats.
    pub(super) noise: Option<Noise>,
}

impl Pass<'_> {
    pub(super) fn run<const S: usize>(self, rule: &impl UpdateRule<S>) {
        let mut states = self.states.into_iter();
        let range = Range {
            start: 0,
            length: self.length,
            weight: self.weight,
            states: from_fn(|_| states.next().expect("a rule knows its states")),
            average: self.average.zip(states.next()),
        };
        if range.weight.are::<f64>() {
            each::<f64, _, S>(rule, range, &self.gradient, self.noise);
        } else {
            each::<f32, _, S>(rule, range, &self.gradient, self.noise);
        }
    }
}

/// A range of elements.
struct Range<'a, const S: usize> {
    /// The index of the first.
    start: usize,
    length: usize,
    weight: Column<'a>,
    states: [Column<'a>; S],
    average: Option<(AverageRule, Column<'a>)>,
}

/// Room for the numbers of a block.
struct Room<N, const S: usize> {
    gradients: [N; BLOCK],
    weights: [N; BLOCK],
    states: [[N; BLOCK]; S],
    average: [N; BLOCK],
    random: [u32; BLOCK],
}

/// Updates all elements, on several threads if they are many.
fn each<N: Number + Element + Pod, R: UpdateRule<S>, const S: usize>(
    rule: &R,
    mut range: Range<'_, S>,
    gradient: &Gradient<'_>,
    noise: Option<Noise>,
) {
    if range.length > GRAIN {
        let left = range.take((range.length / 2).next_multiple_of(GROUP));
        rayon::join(
            || each::<N, R, S>(rule, left, gradient, noise),
            || each::<N, R, S>(rule, range, gradient, noise),
        );
        return;
    }
    blocks::<N, R, S>(rule, range, gradient, noise);
}

/// Updates all elements, block by block. (Not inlined, so that what splits has no room on the stack.)
#[inline(never)]
fn blocks<N: Number + Element + Pod, R: UpdateRule<S>, const S: usize>(
    rule: &R,
    mut range: Range<'_, S>,
    gradient: &Gradient<'_>,
    noise: Option<Noise>,
) {
    let mut room = Room {
        gradients: [N::zeroed(); BLOCK],
        weights: [N::zeroed(); BLOCK],
        states: [[N::zeroed(); BLOCK]; S],
        average: [N::zeroed(); BLOCK],
        random: [0; BLOCK],
    };
    // What lies there as numbers needs no room.
    let block = if gradient.lies::<N>() && range.lies::<N>() {
        range.length
    } else {
        BLOCK
    };
    while range.length > 0 {
        let block = range.take(range.length.min(block));
        block.update(rule, gradient, noise, &mut room);
    }
}

impl<const S: usize> Range<'_, S> {
    /// Whether all are numbers of this type where they lie.
    fn lies<N: Element>(&self) -> bool {
        self.weight.are::<N>() && self.states.iter().all(Column::are::<N>)
    }

    /// Takes off so many elements: whole groups, or all.
    fn take(&mut self, length: usize) -> Self {
        let (start, groups) = (self.start, length.div_ceil(GROUP));
        self.start += length;
        self.length -= length;
        Self {
            start,
            length,
            weight: self.weight.take(groups),
            states: self.states.each_mut().map(|state| state.take(groups)),
            average: self
                .average
                .as_mut()
                .map(|(rule, average)| (*rule, average.take(groups))),
        }
    }

    /// Updates a block.
    fn update<N: Number + Element + Pod>(
        mut self,
        rule: &impl UpdateRule<S>,
        gradient: &Gradient<'_>,
        noise: Option<Noise>,
        room: &mut Room<N, S>,
    ) {
        let length = self.length;
        let gradients = gradient.open(self.start, length, &mut room.gradients);
        let mut broken = [false; BLOCK / GROUP];
        if let Some(noise) = noise {
            if self.weight.is_dithered() || self.states.iter().any(Column::is_dithered) {
                noise.fill(self.start, cast_slice(gradients), &mut room.random);
            }
            for state in &self.states {
                state.broken(&mut broken);
            }
        }
        let weights = &mut self.weight.open(&mut room.weights)[..length];
        let mut states = self.states.iter_mut().zip(&mut room.states);
        let states = from_fn(|_| {
            let (state, room) = states.next().expect("there are as many");
            &mut state.open(room)[..length]
        });
        vectorized(Run(rule, weights, gradients, states));
        for (weights, broken) in weights.chunks_mut(GROUP).zip(broken) {
            if broken {
                // Lion takes a sign, and NaN has none.
                weights.fill(N::of(f64::NAN));
            }
        }
        if let Some((rule, average)) = &mut self.average {
            let numbers = &mut average.open(&mut room.average)[..length];
            vectorized(Run(rule, numbers, weights, []));
            average.close(&mut room.average, length, Dither::ToTheNearest);
        }
        let states = self.states.iter_mut().zip(&mut room.states);
        for (index, (state, numbers)) in states.enumerate() {
            state.close(numbers, length, Dither::AtRandom(&room.random, index));
        }
        let dither = Dither::AtRandom(&room.random, 0);
        self.weight.close(&mut room.weights, length, dither);
    }
}

/// The inner loop, compiled for what the processor can do.
struct Run<'a, R, N, const S: usize>(&'a R, &'a mut [N], &'a [N], [&'a mut [N]; S]);

impl<R: UpdateRule<S>, N: Number, const S: usize> Loop for Run<'_, R, N, S> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(rule, weights, gradients, mut states) = self;
        // Its own, so that hyperparameters stay in registers whatever is written.
        let rule = &rule.clone();
        let length = weights.len();
        let whole = length - length % LANES;
        for start in (0..whole).step_by(LANES) {
            lanes::<N, R, S, LANES>(rule, weights, gradients, &mut states, start);
        }
        for start in whole..length {
            lanes::<N, R, S, 1>(rule, weights, gradients, &mut states, start);
        }
    }
}

/// Updates `L` elements. They are read before any is written, so the compiler need not ask whether the buffers overlap.
/// (Plain loops: closures are compiled for any processor.)
#[inline(always)]
fn lanes<N: Number, R: UpdateRule<S>, const S: usize, const L: usize>(
    rule: &R,
    weights: &mut [N],
    gradients: &[N],
    states: &mut [&mut [N]; S],
    start: usize,
) {
    let mut values = load::<N, L>(weights, start);
    let gradients = load::<N, L>(gradients, start);
    let mut rows = [[N::of(0.0); L]; S];
    for state in 0..S {
        rows[state] = load::<N, L>(states[state], start);
    }
    rule.update_lanes(&mut values, &gradients, &mut rows);
    weights[start..start + L].copy_from_slice(&values);
    for state in 0..S {
        states[state][start..start + L].copy_from_slice(&rows[state]);
    }
}

#[inline(always)]
fn load<N: Number, const L: usize>(from: &[N], start: usize) -> [N; L] {
    let mut values = [N::of(0.0); L];
    values.copy_from_slice(&from[start..start + L]);
    values
}
