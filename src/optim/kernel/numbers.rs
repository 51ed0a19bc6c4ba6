//! A step on the processor where all operands are floats of one type: in one pass over memory, in place where a buffer has
//! one owner and is in the memory of this process.

use std::array::from_fn;

use burn::tensor::{DType, Element, Tensor, TensorData};
use bytemuck::Pod;

use super::super::format::{StateTensor, Weight};
use super::super::rule::Number;
use super::gradient::Gradient;
use super::rule::{Apply, BLOCK, Formula, MOST_STATES, OfStates, Update, on_threads};
use crate::device::of_data;

/// Updates a weight and its states.
pub(super) fn update<const D: usize>(
    update: &Update,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let device = gradient.device();
    let states = states.into_iter().map(StateTensor::full);
    let floats = std::iter::once(weight.value).chain(states);
    let floats = floats.map(Tensor::into_data).collect();
    let floats = Gradient::with(gradient, |gradient| update_data(update, floats, gradient));
    let tensor = |data| of_data(data, &device);
    let mut written = floats.into_iter();
    let weight = Weight::plain(tensor(written.next().expect("a weight is there")));
    let states = written.map(|data| StateTensor::Full(tensor(data)));
    (weight, states.collect())
}

/// The same with what the tensors hold.
pub(super) fn update_data(
    update: &Update,
    mut floats: Vec<TensorData>,
    gradient: &Gradient<'_>,
) -> Vec<TensorData> {
    match floats[0].dtype() {
        DType::F32 => update_numbers::<f32>(update, &mut floats, gradient),
        DType::F64 => update_numbers::<f64>(update, &mut floats, gradient),
        dtype => unreachable!("{dtype:?} is computed in f32"),
    }
    floats
}

fn update_numbers<N: Number + Element + Pod>(
    update: &Update,
    floats: &mut [TensorData],
    gradient: &Gradient<'_>,
) where
    dyn Formula: Apply<N>,
{
    let numbers = |data| TensorData::as_mut_slice(data).expect("all are of this type");
    let mut floats = floats.iter_mut().map(numbers);
    let all = Numbers {
        start: 0,
        parameters: floats.next().unwrap_or_default(),
        average: update
            .average
            .and_then(|_| floats.next_back())
            .unwrap_or_default(),
        states: from_fn(|_| floats.next().unwrap_or_default()),
    };
    let each = |numbers: Numbers<'_, N>| numbers.update(update, gradient);
    on_threads(all.parameters.len(), all, Numbers::take, &each);
}

/// Elements that lie there as numbers in which they are computed. What there is none of is empty.
struct Numbers<'a, N> {
    /// The index of the first.
    start: usize,
    parameters: &'a mut [N],
    states: [&'a mut [N]; MOST_STATES],
    average: &'a mut [N],
}

impl<'a, N: Number + Element + Pod> Numbers<'a, N> {
    /// Takes off so many elements.
    fn take(&mut self, length: usize) -> Self {
        let first = |all: &mut &'a mut [N]| {
            let length = length.min(all.len());
            all.split_off_mut(..length).expect("there are as many")
        };
        let start = self.start;
        self.start += length;
        Self {
            start,
            parameters: first(&mut self.parameters),
            states: self.states.each_mut().map(first),
            average: first(&mut self.average),
        }
    }

    /// Updates them. (Not inlined, so that what splits has no room on the stack.)
    #[inline(never)]
    fn update(mut self, update: &Update, gradient: &Gradient<'_>)
    where
        dyn Formula: Apply<N>,
    {
        // Of a gradient that lies there otherwise, a block at a time.
        let mut room = [N::zeroed(); BLOCK];
        let block = match gradient.view {
            None => self.parameters.len(),
            Some(_) => BLOCK,
        };
        while !self.parameters.is_empty() {
            let numbers = self.take(block.min(self.parameters.len()));
            let parameters = numbers.parameters;
            let gradients = gradient.open(numbers.start, parameters.len(), &mut room);
            update
                .rule
                .formula
                .apply(parameters, gradients, numbers.states);
            if let Some(average) = update.average {
                let average = OfStates::<_, 0>(average);
                average.apply(numbers.average, parameters, Default::default());
            }
        }
    }
}
