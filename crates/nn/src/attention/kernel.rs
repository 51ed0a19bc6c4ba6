//! Attention on `flex`, for a tile of queries at a time.
//!
//! # Memory
//!
//! Each thread has the scores of a tile, and in the backward pass also their gradients: `64 * keys` numbers each. The backward pass also
//! has the gradients of keys and values for each head of queries, before they are summed over the heads of a group.

use std::ops::Range;

use backburn_base::AnyTensor;
use rayon::prelude::*;

use super::rows::{Mask, gradients_of_scores, softmax, sum_of_groups};
use super::{Problem, Sizes};
use crate::elements::{Elements, have_kernel, tensor};
use crate::node::Computed;
use crate::product::Effect::{Add, Set};
use crate::product::{ALONE, Matrix, multiply};

/// Queries of a tile.
const TILE: usize = 64;

#[derive(Clone)]
pub(super) struct Kernel {
    problem: Problem,
    mask: Option<Mask>,
}

/// Slices of the buffers of a head of queries.
struct Head<'a> {
    /// Indices in the batch and in the heads.
    index: [usize; 2],
    query: Matrix<'a>,
    key: Matrix<'a>,
    value: Matrix<'a>,
}

impl Kernel {
    /// Returns `None` if the kernel can't compute these tensors.
    pub(super) fn run(problem: &Problem, inputs: &[AnyTensor; 3]) -> Option<Computed> {
        let mask = problem.mask.as_ref();
        let mask = mask.map(|mask| Mask::new(mask, &problem.sizes));
        if !have_kernel(inputs) || matches!(mask, Some(None)) {
            return None;
        }
        let kernel = Self {
            problem: problem.clone(),
            mask: mask.flatten(),
        };
        let inputs = inputs.clone();
        Some(Computed::new(kernel.forward(&inputs), move |gradient| {
            kernel.backward(&inputs, &gradient)
        }))
    }

    fn head<'a>(&self, [query, key, value]: &'a [Elements; 3], head: usize) -> Head<'a> {
        let sizes = self.problem.sizes;
        let index = [head / sizes.heads, head % sizes.heads];
        let group = [index[0], index[1] / sizes.group()];
        Head {
            index,
            query: query.matrix(&index),
            key: key.matrix(&group),
            value: value.matrix(&group),
        }
    }

    fn forward(&self, inputs: &[AnyTensor; 3]) -> AnyTensor {
        let sizes = self.problem.sizes;
        let (count, value_dim) = (sizes.batch * sizes.heads, sizes.dims[1]);
        let elements = inputs.each_ref().map(Elements::rows);
        let mut output = vec![0.0; count * sizes.queries * value_dim];
        output
            .par_chunks_mut(sizes.queries * value_dim)
            .enumerate()
            .for_each(|(index, output)| {
                let head = self.head(&elements, index);
                output
                    .par_chunks_mut(TILE * value_dim)
                    .enumerate()
                    .for_each_init(Vec::new, |shares, (tile, output)| {
                        self.forward_tile(&head, tile * TILE, shares, output);
                    });
            });
        tensor(output, sizes.of_output(), &inputs[0])
    }

    fn forward_tile(
        &self,
        head: &Head<'_>,
        first: usize,
        shares: &mut Vec<f32>,
        output: &mut [f32],
    ) {
        let value_dim = self.problem.sizes.dims[1];
        let rows = first..first + output.len() / value_dim;
        let keys = self.keys(&rows);
        if keys.is_empty() {
            // The output is zero.
            return;
        }
        self.shares(head, &rows, &keys, shares);
        let (shares, value) = (
            Matrix::new(shares, rows.len(), keys.len()),
            head.value.part(&keys),
        );
        multiply(output, value_dim, shares, value, Set(1.0), ALONE);
    }

    /// Returns the keys to which a query attends, unless they are masked.
    fn keys_of(&self, query: usize) -> Range<usize> {
        let (Sizes { queries, keys, .. }, options) = (self.problem.sizes, self.problem.options);
        // The key after the query: the last query is at the place of the last key.
        let next = (query + 1 + keys).saturating_sub(queries);
        let start = options.window.map_or(0, |it| next.saturating_sub(it));
        let end = if options.is_causal { next } else { keys };
        start.min(end)..end
    }

    /// Returns the keys to which some of the queries of `rows` attend.
    fn keys(&self, rows: &Range<usize>) -> Range<usize> {
        self.keys_of(rows.start).start..self.keys_of(rows.end - 1).end
    }

    /// Computes the softmax of the scores of `rows` and `keys` into `shares`, zero where they are hidden.
    fn shares(
        &self,
        head: &Head<'_>,
        rows: &Range<usize>,
        keys: &Range<usize>,
        shares: &mut Vec<f32>,
    ) {
        let width = keys.len();
        shares.resize(rows.len() * width, 0.0);
        let (query, key) = (head.query.part(rows), head.key.part(keys).transposed());
        let scale = Set(self.problem.scale() as f32);
        multiply(shares, width, query, key, scale, ALONE);
        for (row, scores) in rows.clone().zip(shares.chunks_mut(width)) {
            let seen = self.keys_of(row);
            scores[..(seen.start - keys.start).min(width)].fill(f32::NEG_INFINITY);
            scores[seen.end - keys.start..].fill(f32::NEG_INFINITY);
            if let Some(mask) = &self.mask {
                mask.hide([head.index[0], head.index[1], row], keys.start, scores);
            }
            softmax(scores);
        }
    }

    fn backward(&self, inputs: &[AnyTensor; 3], gradient: &AnyTensor) -> [AnyTensor; 3] {
        let sizes = self.problem.sizes;
        let (count, [head_dim, value_dim]) = (sizes.batch * sizes.heads, sizes.dims);
        let elements = inputs.each_ref().map(Elements::rows);
        let gradient = Elements::rows(gradient);
        let mut of_query = vec![0.0; count * sizes.queries * head_dim];
        let mut of_key = vec![0.0; count * sizes.keys * head_dim];
        let mut of_value = vec![0.0; count * sizes.keys * value_dim];
        of_query
            .par_chunks_mut(sizes.queries * head_dim)
            .zip(of_key.par_chunks_mut(sizes.keys * head_dim))
            .zip(of_value.par_chunks_mut(sizes.keys * value_dim))
            .enumerate()
            .for_each_init(Default::default, |scratch, (index, gradients)| {
                let ((of_query, of_key), of_value) = gradients;
                let head = self.head(&elements, index);
                let gradient = gradient.matrix(&head.index);
                self.backward_head(&head, gradient, [of_query, of_key, of_value], scratch);
            });
        let of_key = sum_of_groups(of_key, sizes.group(), sizes.keys * head_dim);
        let of_value = sum_of_groups(of_value, sizes.group(), sizes.keys * value_dim);
        [
            tensor(of_query, inputs[0].shape(), &inputs[0]),
            tensor(of_key, inputs[1].shape(), &inputs[1]),
            tensor(of_value, inputs[2].shape(), &inputs[2]),
        ]
    }

    fn backward_head(
        &self,
        head: &Head<'_>,
        gradient: Matrix<'_>,
        [of_query, of_key, of_value]: [&mut [f32]; 3],
        [shares, of_scores]: &mut [Vec<f32>; 2],
    ) {
        let (queries, [head_dim, value_dim]) =
            (self.problem.sizes.queries, self.problem.sizes.dims);
        let scale = self.problem.scale() as f32;
        for first in (0..queries).step_by(TILE) {
            let rows = first..queries.min(first + TILE);
            let keys = self.keys(&rows);
            if keys.is_empty() {
                continue;
            }
            let (height, width) = (rows.len(), keys.len());
            self.shares(head, &rows, &keys, shares);
            of_scores.resize(shares.len(), 0.0);
            let (query, gradients) = (head.query.part(&rows), gradient.part(&rows));
            let (key, value) = (head.key.part(&keys), head.value.part(&keys).transposed());
            multiply(of_scores, width, gradients, value, Set(1.0), ALONE);
            let all = shares.chunks_mut(width).zip(of_scores.chunks_mut(width));
            for (shares, gradients) in all {
                gradients_of_scores(shares, gradients, scale);
            }
            let shares = Matrix::new(shares, height, width).transposed();
            let of_scores = Matrix::new(of_scores, height, width);
            let to = &mut of_value[keys.start * value_dim..];
            multiply(to, value_dim, shares, gradients, Add, ALONE);
            let to = &mut of_key[keys.start * head_dim..];
            multiply(to, head_dim, of_scores.transposed(), query, Add, ALONE);
            let to = &mut of_query[first * head_dim..];
            multiply(to, head_dim, of_scores, key, Set(1.0), ALONE);
        }
    }
}
