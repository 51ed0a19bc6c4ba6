//! The single pass on `flex`.

mod gradient;
mod groups;

use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, bf16, f16};
use pulp::Arch;

use super::super::rule::{Number, UpdateRule};
use gradient::{Gradient, Stored, gather};

pub(super) use groups::{each_group, update_groups};

/// Elements that are computed together, in registers.
const LANES: usize = 16;
/// Elements of a strided gradient that are gathered at a time.
const BLOCK: usize = 64 * LANES;
/// Elements that are worth a thread.
const GRAIN: usize = 32 * BLOCK;

/// Applies `rule` to every element.
pub(super) fn update<const S: usize>(
    rule: &impl UpdateRule<S>,
    parameter: FlexTensor,
    gradient: FlexTensor,
    states: Vec<FlexTensor>,
) -> (FlexTensor, Vec<FlexTensor>) {
    let pass = Pass {
        parameter,
        gradient,
        states,
    };
    match pass.parameter.dtype() {
        DType::F64 => pass.run::<f64, S>(rule),
        DType::F32 => pass.run::<f32, S>(rule),
        DType::F16 => pass.run::<f16, S>(rule),
        DType::BF16 => pass.run::<bf16, S>(rule),
        dtype => panic!("parameters of type {dtype:?} have no gradient"),
    }
}

struct Pass {
    parameter: FlexTensor,
    gradient: FlexTensor,
    states: Vec<FlexTensor>,
}

impl Pass {
    /// The pass over memory.
    fn run<E: Stored, const S: usize>(
        self,
        rule: &impl UpdateRule<S>,
    ) -> (FlexTensor, Vec<FlexTensor>) {
        let mut parameter = dense(self.parameter);
        let mut states: Vec<FlexTensor> = self.states.into_iter().map(dense).collect();

        let mut written = states.iter_mut().map(FlexTensor::storage_mut::<E>);
        let chunk = Chunk {
            parameter: parameter.storage_mut::<E>(),
            states: std::array::from_fn(|_| written.next().expect("a rule knows its states")),
        };
        let gradient = Gradient::new(&self.gradient);
        let arch = Arch::new();
        each(rule, chunk, &gradient, 0, arch);
        drop(written);
        (parameter, states)
    }
}

/// `tensor` with its elements one after the other in a buffer of their own length; a view of
/// something else is copied. (A shared buffer is copied by `storage_mut`.)
fn dense(tensor: FlexTensor) -> FlexTensor {
    // It is the same buffer if it is dense already, and then has one handle again.
    let dense = tensor.to_contiguous();
    drop(tensor);
    dense
}

/// What is written of a range of elements.
struct Chunk<'a, E, const S: usize> {
    parameter: &'a mut [E],
    states: [&'a mut [E]; S],
}

impl<'a, E, const S: usize> Chunk<'a, E, S> {
    fn split_at(self, middle: usize) -> (Self, Self) {
        let (left, right) = self.parameter.split_at_mut(middle);
        let mut halves = self.states.map(|state| {
            let (left, right) = state.split_at_mut(middle);
            [Some(left), Some(right)]
        });
        let mut take = |half: usize| {
            halves
                .each_mut()
                .map(|halves| halves[half].take().expect("each is taken once"))
        };
        let [left_states, right_states] = [take(0), take(1)];
        let left = Self {
            parameter: left,
            states: left_states,
        };
        let right = Self {
            parameter: right,
            states: right_states,
        };
        (left, right)
    }
}

/// Updates the elements from `start` on, on several threads if they are many.
fn each<E: Stored, const S: usize, R: UpdateRule<S>>(
    rule: &R,
    chunk: Chunk<'_, E, S>,
    gradient: &Gradient<'_, E>,
    start: usize,
    arch: Arch,
) {
    let length = chunk.parameter.len();
    if length > GRAIN {
        let middle = (length / 2).next_multiple_of(LANES);
        let (left, right) = chunk.split_at(middle);
        rayon::join(
            || each(rule, left, gradient, start, arch),
            || each(rule, right, gradient, start + middle, arch),
        );
        return;
    }
    match gradient {
        Gradient::Dense(all) => {
            let gradient = &all[start..start + length];
            arch.dispatch(Run(rule, chunk, gradient));
        }
        Gradient::Strided { storage, layout } => {
            let mut rest = chunk;
            let mut start = start;
            let mut block = [E::zeroed(); BLOCK];
            while !rest.parameter.is_empty() {
                let length = rest.parameter.len().min(BLOCK);
                let (chunk, after) = rest.split_at(length);
                gather(storage, layout, start, &mut block[..length]);
                arch.dispatch(Run(rule, chunk, &block[..length]));
                rest = after;
                start += length;
            }
        }
    }
}

/// The inner loop, compiled for what the processor can do.
struct Run<'a, E, R, const S: usize>(&'a R, Chunk<'a, E, S>, &'a [E]);

impl<E: Stored, R: UpdateRule<S>, const S: usize> pulp::NullaryFnOnce for Run<'_, E, R, S> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(rule, chunk, gradient) = self;
        let length = gradient.len();
        let parameter = &mut chunk.parameter[..length];
        let mut states = chunk.states.map(|state| &mut state[..length]);
        let whole = length - length % LANES;
        for start in (0..whole).step_by(LANES) {
            lanes::<E, R, S, LANES>(rule, parameter, gradient, &mut states, start);
        }
        for start in whole..length {
            lanes::<E, R, S, 1>(rule, parameter, gradient, &mut states, start);
        }
    }
}

/// Updates `N` elements. They are read before any is written, so the compiler need not ask whether
/// the buffers overlap. (Plain loops: closures are compiled for any processor.)
#[inline(always)]
fn lanes<E: Stored, R: UpdateRule<S>, const S: usize, const N: usize>(
    rule: &R,
    parameter: &mut [E],
    gradient: &[E],
    states: &mut [&mut [E]; S],
    start: usize,
) {
    let mut values = load::<E, N>(parameter, start);
    let gradients = load::<E, N>(gradient, start);
    let mut rows = [[E::Computed::of(0.0); N]; S];
    for state in 0..S {
        rows[state] = load::<E, N>(states[state], start);
    }
    rule.update_lanes(&mut values, &gradients, &mut rows);
    store(parameter, start, values);
    for state in 0..S {
        store(states[state], start, rows[state]);
    }
}

#[inline(always)]
fn load<E: Stored, const N: usize>(from: &[E], start: usize) -> [E::Computed; N] {
    let from = &from[start..start + N];
    let mut values = [E::Computed::of(0.0); N];
    for lane in 0..N {
        values[lane] = from[lane].load();
    }
    values
}

#[inline(always)]
fn store<E: Stored, const N: usize>(to: &mut [E], start: usize, values: [E::Computed; N]) {
    let to = &mut to[start..start + N];
    for lane in 0..N {
        to[lane] = E::store(values[lane]);
    }
}
