//! The step on the processor for operands that are floats of one type: in one pass over memory, in place where a buffer has one
//! owner and is in the memory of this process.

use std::array::from_fn;

use burn::tensor::{Element, Tensor, TensorData};
use bytemuck::Pod;

use super::super::rule::{Apply, Formula, MOST_STATES, Number};
use super::gradient::Gradient;
use super::{BLOCK, Update, on_threads};
use backburn_base::of_data;

/// Updates a weight and its states, all in numbers of type `N`.
pub(super) fn update<N: Number + Element + Pod, const D: usize>(
    update: &Update,
    gradient: Tensor<D>,
    floats: Vec<Tensor<D>>,
) -> Vec<Tensor<D>>
where
    dyn Formula: Apply<N>,
{
    let device = gradient.device();
    let mut data: Vec<_> = floats.into_iter().map(Tensor::into_data).collect();
    let numbers = |data| TensorData::as_mut_slice(data).expect("all are of this type");
    let mut floats = data.iter_mut().map(numbers);
    let all = Numbers {
        start: 0,
        parameters: floats.next().unwrap_or_default(),
        states: from_fn(|_| floats.next().unwrap_or_default()),
    };
    Gradient::with(gradient, |gradient| {
        let each = |numbers: Numbers<'_, N>| numbers.update(update, gradient);
        on_threads(all.parameters.len(), all, Numbers::take, &each);
    });
    let written = data.into_iter();
    written.map(|data| of_data(data, &device)).collect()
}

/// Elements in the type of the computation. Unused states are empty.
struct Numbers<'a, N> {
    /// Index of the first element.
    start: usize,
    parameters: &'a mut [N],
    states: [&'a mut [N]; MOST_STATES],
}

impl<'a, N: Number + Element + Pod> Numbers<'a, N> {
    /// Splits off `length` elements.
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
        }
    }

    /// Updates the range. Not inlined, so that the recursion has a small stack frame.
    #[inline(never)]
    fn update(mut self, update: &Update, gradient: &Gradient<'_>)
    where
        dyn Formula: Apply<N>,
    {
        // Used for a gradient that is not contiguous, a block at a time.
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
        }
    }
}
