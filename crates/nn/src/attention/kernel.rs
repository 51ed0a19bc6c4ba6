//! Attention on `flex`, for a tile of queries at a time.
//!
//! # Memory
//!
//! Each thread has the scores of a tile, and in the backward pass also their gradients: `64 * keys` numbers each. The backward pass also
//! has the gradients of keys and values for each head of queries, before they are summed over the heads of a group.

use std::ops::Range;

use backburn_base::AnyTensor;
use rayon::prelude::*;

use super::rows::{Mask, Row, gradients_of_scores, softmax, sum_of_groups};
use super::{Problem, Sizes};
use crate::elements::{Elements, have_kernel, tensor};
use crate::node::Computed;
use crate::product::Effect::{Add, Set};
use crate::product::{Shape, multiply};

/// Queries of a tile.
const TILE: usize = 64;

#[derive(Clone)]
pub(super) struct Kernel {
    sizes: Sizes,
    scale: f32,
    is_causal: bool,
    window: Option<usize>,
    mask: Option<Mask>,
}

/// Slices of the buffers of a head.
struct Head<'a> {
    /// Indices in the batch and in the heads of queries.
    index: [usize; 2],
    query: Matrix<'a>,
    key: Matrix<'a>,
    value: Matrix<'a>,
}

/// Rows of a matrix: the elements from its first one on, its columns, and the distance of rows.
#[derive(Clone, Copy)]
struct Matrix<'a>(&'a [f32], usize, usize);

impl<'a> Matrix<'a> {
    fn of(elements: &'a Elements, index: [usize; 2], columns: usize) -> Self {
        let [of_batch, of_head, of_row, _] = elements.strides::<4>();
        let start = index[0] * of_batch + index[1] * of_head;
        Self(&elements.get()[start..], columns, of_row)
    }

    fn rows(self, rows: &Range<usize>) -> (&'a [f32], Shape) {
        let Self(all, columns, stride) = self;
        (
            &all[rows.start * stride..],
            Shape::new(rows.len(), columns, stride),
        )
    }

    fn row(self, row: usize) -> &'a [f32] {
        &self.0[row * self.2..][..self.1]
    }
}

impl Kernel {
    /// Returns `None` if the kernel can't compute these tensors.
    pub(super) fn run(problem: &Problem, inputs: &[AnyTensor; 3]) -> Option<Computed<3>> {
        if !have_kernel(inputs) {
            return None;
        }
        let kernel = Self {
            sizes: problem.sizes,
            scale: problem.scale() as f32,
            is_causal: problem.options.is_causal,
            window: problem.options.window,
            mask: Mask::new(problem)?,
        };
        let inputs = inputs.clone();
        let (output, numbers) = kernel.forward(&inputs);
        Some(Computed::new(output.clone(), move |gradient| {
            let gradients = kernel.backward(&inputs, &output, &numbers, &gradient);
            gradients.map(Some)
        }))
    }

    fn head<'a>(&self, elements: &'a [Elements; 3], head: usize) -> Head<'a> {
        let Sizes { heads, groups, .. } = self.sizes;
        let [head_dim, value_dim] = self.sizes.dims;
        let index = [head / heads, head % heads];
        let of_group = [index[0], index[1] / (heads / groups)];
        Head {
            index,
            query: Matrix::of(&elements[0], index, head_dim),
            key: Matrix::of(&elements[1], of_group, head_dim),
            value: Matrix::of(&elements[2], of_group, value_dim),
        }
    }

    /// Computes the output, and the numbers of each row.
    fn forward(&self, inputs: &[AnyTensor; 3]) -> (AnyTensor, Vec<Row>) {
        let Sizes { queries, .. } = self.sizes;
        let (count, value_dim) = (self.sizes.all_heads(), self.sizes.dims[1]);
        let elements = inputs.each_ref().map(Elements::rows);
        let mut output = vec![0.0; count * queries * value_dim];
        let mut numbers = vec![Row::EMPTY; count * queries];
        output
            .par_chunks_mut(queries * value_dim)
            .zip(numbers.par_chunks_mut(queries))
            .enumerate()
            .for_each(|(index, (output, numbers))| {
                let head = self.head(&elements, index);
                output
                    .par_chunks_mut(TILE * value_dim)
                    .zip(numbers.par_chunks_mut(TILE))
                    .enumerate()
                    .for_each_init(Vec::new, |scores, (tile, (output, numbers))| {
                        self.forward_tile(&head, tile * TILE, scores, output, numbers);
                    });
            });
        let output = tensor(output, self.sizes.of_output(), &inputs[0]);
        (output, numbers)
    }

    fn forward_tile(
        &self,
        head: &Head<'_>,
        first: usize,
        scores: &mut Vec<f32>,
        output: &mut [f32],
        numbers: &mut [Row],
    ) {
        let rows = first..first + numbers.len();
        let (keys, columns) = (self.keys(&rows), self.sizes.dims[1]);
        self.scores(head, &rows, &keys, scores);
        if keys.is_empty() {
            // The output is zero.
            return;
        }
        for (row, number) in numbers.iter_mut().enumerate() {
            *number = softmax(&mut scores[row * keys.len()..][..keys.len()]);
        }
        let shares = (&**scores, Shape::new(rows.len(), keys.len(), keys.len()));
        let shape = Shape::new(rows.len(), columns, columns);
        let values = head.value.rows(&keys);
        multiply((output, shape), shares, values, Set(1.0));
    }

    /// Returns the keys to which a query attends, unless they are masked.
    fn keys_of(&self, query: usize) -> Range<usize> {
        let Sizes { queries, keys, .. } = self.sizes;
        // The key after the query: the last query is at the place of the last key.
        let next = (query + 1 + keys).saturating_sub(queries);
        let start = self.window.map_or(0, |window| next.saturating_sub(window));
        let end = if self.is_causal { next } else { keys };
        start.min(end)..end
    }

    /// Returns the keys to which some of the queries of `rows` attend.
    fn keys(&self, rows: &Range<usize>) -> Range<usize> {
        self.keys_of(rows.start).start..self.keys_of(rows.end - 1).end
    }

    /// Computes the scores of `rows` and `keys` into `scores`, negative infinity where they are hidden.
    fn scores(
        &self,
        head: &Head<'_>,
        rows: &Range<usize>,
        keys: &Range<usize>,
        scores: &mut Vec<f32>,
    ) {
        let width = keys.len();
        scores.resize(rows.len() * width, 0.0);
        if width == 0 {
            return;
        }
        let shape = Shape::new(rows.len(), width, width);
        let (key, key_shape) = head.key.rows(keys);
        let key = (key, key_shape.transposed());
        let query = head.query.rows(rows);
        multiply((scores, shape), query, key, Set(self.scale));
        for (row, scores) in rows.clone().zip(scores.chunks_mut(width)) {
            let seen = self.keys_of(row);
            scores[..(seen.start - keys.start).min(width)].fill(f32::NEG_INFINITY);
            scores[seen.end - keys.start..].fill(f32::NEG_INFINITY);
            if let Some(mask) = &self.mask {
                mask.hide([head.index[0], head.index[1], row], keys.start, scores);
            }
        }
    }

    fn backward(
        &self,
        inputs: &[AnyTensor; 3],
        output: &AnyTensor,
        numbers: &[Row],
        gradient: &AnyTensor,
    ) -> [AnyTensor; 3] {
        let Sizes { queries, keys, .. } = self.sizes;
        let (count, [head_dim, value_dim]) = (self.sizes.all_heads(), self.sizes.dims);
        let elements = inputs.each_ref().map(Elements::rows);
        let results = [output, gradient].map(Elements::rows);
        let mut of_query = vec![0.0; count * queries * head_dim];
        let mut of_key = vec![0.0; count * keys * head_dim];
        let mut of_value = vec![0.0; count * keys * value_dim];
        of_query
            .par_chunks_mut(queries * head_dim)
            .zip(of_key.par_chunks_mut(keys * head_dim))
            .zip(of_value.par_chunks_mut(keys * value_dim))
            .zip(numbers.par_chunks(queries))
            .enumerate()
            .for_each_init(Default::default, |scratch, (index, gradients)| {
                let (((of_query, of_key), of_value), numbers) = gradients;
                let head = self.head(&elements, index);
                let results = results.each_ref();
                let results = results.map(|it| Matrix::of(it, head.index, value_dim));
                let gradients = [of_query, of_key, of_value];
                self.backward_head(&head, results, numbers, gradients, scratch);
            });
        let group = self.sizes.heads / self.sizes.groups;
        let of_key = sum_of_groups(of_key, group, keys * head_dim);
        let of_value = sum_of_groups(of_value, group, keys * value_dim);
        [
            tensor(of_query, inputs[0].shape(), &inputs[0]),
            tensor(of_key, inputs[1].shape(), &inputs[1]),
            tensor(of_value, inputs[2].shape(), &inputs[2]),
        ]
    }

    fn backward_head(
        &self,
        head: &Head<'_>,
        [output, gradient]: [Matrix<'_>; 2],
        numbers: &[Row],
        [of_query, of_key, of_value]: [&mut [f32]; 3],
        [shares, of_scores]: &mut [Vec<f32>; 2],
    ) {
        let (queries, [head_dim, value_dim]) = (self.sizes.queries, self.sizes.dims);
        for first in (0..queries).step_by(TILE) {
            let rows = first..queries.min(first + TILE);
            let keys = self.keys(&rows);
            let width = keys.len();
            if width == 0 {
                continue;
            }
            self.scores(head, &rows, &keys, shares);
            of_scores.resize(shares.len(), 0.0);
            let shape = Shape::new(rows.len(), width, width);
            let (values, value_shape) = head.value.rows(&keys);
            let values = (values, value_shape.transposed());
            let gradients = gradient.rows(&rows);
            multiply((of_scores, shape), gradients, values, Set(1.0));
            let all = shares.chunks_mut(width).zip(of_scores.chunks_mut(width));
            for (row, (shares, of_scores)) in rows.clone().zip(all) {
                let (output, gradient) = (output.row(row), gradient.row(row));
                gradients_of_scores(
                    shares,
                    of_scores,
                    numbers[row],
                    output,
                    gradient,
                    self.scale,
                );
            }
            let to = (
                &mut of_value[keys.start * value_dim..],
                Shape::new(width, value_dim, value_dim),
            );
            let transposed = (&**shares, shape.transposed());
            multiply(to, transposed, gradients, Add);
            let to = (
                &mut of_key[keys.start * head_dim..],
                Shape::new(width, head_dim, head_dim),
            );
            let transposed = (&**of_scores, shape.transposed());
            multiply(to, transposed, head.query.rows(&rows), Add);
            let to = (
                &mut of_query[first * head_dim..],
                Shape::new(rows.len(), head_dim, head_dim),
            );
            multiply(to, (of_scores, shape), head.key.rows(&keys), Set(1.0));
        }
    }
}
