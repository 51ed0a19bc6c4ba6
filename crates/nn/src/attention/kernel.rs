//! Attention on `flex`, for a tile of queries at a time.
//!
//! # Memory
//!
//! Each thread has the scores of a tile, and in the backward pass also their gradients: `64 * keys` numbers each. The backward pass also
//! has the gradients of keys and values for each head of queries, before they are summed over the heads of a group.

use std::ops::Range;

use backburn_base::AnyTensor;
use rayon::prelude::*;

use super::Problem;
use super::rows::{Mask, gradients_of_scores, softmax, sum_of_groups};
use crate::elements::{Elements, have_kernel, tensor};
use crate::node::Computed;
use crate::product::Effect::{Add, Set};
use crate::product::{ALONE, Matrix, multiply};

/// Queries of a tile.
const TILE: usize = 64;

/// Slices of the buffers of a head of queries.
struct Head<'a> {
    /// Indices in the batch and in the heads.
    index: [usize; 2],
    query: Matrix<'a>,
    key: Matrix<'a>,
    value: Matrix<'a>,
}

impl Problem {
    /// Returns `None` if the kernel can't compute these tensors.
    pub(super) fn kernel(&self, inputs: &[AnyTensor; 3]) -> Option<Computed> {
        if !have_kernel(inputs) {
            return None;
        }
        let mask = match &self.mask {
            Some(mask) => Some(Mask::new(mask, self)?),
            None => None,
        };
        let kernel = Kernel(self.clone(), mask);
        let inputs = inputs.clone();
        Some(Computed::new(kernel.forward(&inputs), move |gradient| {
            kernel.backward(&inputs, &gradient)
        }))
    }
}

/// A problem, and its mask as the kernel reads it.
struct Kernel(Problem, Option<Mask>);

impl Kernel {
    fn head<'a>(&self, [query, key, value]: &'a [Elements; 3], head: usize) -> Head<'a> {
        let index = [head / self.0.heads, head % self.0.heads];
        let group = [index[0], index[1] / (self.0.heads / self.0.groups)];
        Head {
            index,
            query: query.matrix(&index),
            key: key.matrix(&group),
            value: value.matrix(&group),
        }
    }

    fn forward(&self, inputs: &[AnyTensor; 3]) -> AnyTensor {
        let (shape, value_dim) = (self.0.output_shape(), self.0.value_dim);
        let elements = inputs.each_ref().map(Elements::rows);
        let mut output = vec![0.0; shape.iter().product()];
        let heads = output.par_chunks_mut(shape[2] * value_dim).enumerate();
        heads.for_each(|(index, output)| {
            let head = self.head(&elements, index);
            let tiles = output.par_chunks_mut(TILE * value_dim).enumerate();
            tiles.for_each_init(Vec::new, |shares, (tile, output)| {
                let first = tile * TILE;
                let rows = first..first + output.len() / value_dim;
                // Without keys the output is zero.
                if let Some(keys) = self.shares(&head, &rows, shares) {
                    let shares = Matrix::new(shares, rows.len(), keys.len());
                    let value = head.value.part(&keys);
                    multiply(output, value_dim, shares, value, Set(1.0), ALONE);
                }
            });
        });
        tensor(output, shape, &inputs[0])
    }

    /// Returns the keys to which a query attends, unless they are masked.
    fn keys_of(&self, query: usize) -> Range<usize> {
        let (queries, keys, options) = (self.0.queries, self.0.keys, self.0.options);
        // The key after the query: the last query is at the place of the last key.
        let next = (query + 1 + keys).saturating_sub(queries);
        let start = options.window.map_or(0, |it| next.saturating_sub(it));
        let end = if options.is_causal { next } else { keys };
        start.min(end)..end
    }

    /// Computes the softmax of the scores of `rows` into `shares`, zero where they are hidden. Returns the keys to which some of the queries
    /// attend, if there is one.
    fn shares(
        &self,
        head: &Head<'_>,
        rows: &Range<usize>,
        shares: &mut Vec<f32>,
    ) -> Option<Range<usize>> {
        let keys = self.keys_of(rows.start).start..self.keys_of(rows.end - 1).end;
        let width = keys.len();
        if width == 0 {
            return None;
        }
        shares.resize(rows.len() * width, 0.0);
        let (query, key) = (head.query.part(rows), head.key.part(&keys).transposed());
        let scale = Set(self.0.scale as f32);
        multiply(shares, width, query, key, scale, ALONE);
        for (row, scores) in rows.clone().zip(shares.chunks_mut(width)) {
            let seen = self.keys_of(row);
            scores[..(seen.start - keys.start).min(width)].fill(f32::NEG_INFINITY);
            scores[seen.end - keys.start..].fill(f32::NEG_INFINITY);
            if let Some(mask) = &self.1 {
                mask.hide([head.index[0], head.index[1], row], keys.start, scores);
            }
            softmax(scores);
        }
        Some(keys)
    }

    fn backward(&self, inputs: &[AnyTensor; 3], gradient: &AnyTensor) -> [AnyTensor; 3] {
        let (sizes, count) = (&self.0, self.0.batch * self.0.heads);
        let elements = inputs.each_ref().map(Elements::rows);
        let gradient = Elements::rows(gradient);
        let lengths = [
            sizes.queries * sizes.head_dim,
            sizes.keys * sizes.head_dim,
            sizes.keys * sizes.value_dim,
        ];
        let [mut dquery, mut dkey, mut dvalue] = lengths.map(|length| vec![0.0; count * length]);
        dquery
            .par_chunks_mut(lengths[0])
            .zip(dkey.par_chunks_mut(lengths[1]))
            .zip(dvalue.par_chunks_mut(lengths[2]))
            .enumerate()
            .for_each_init(Default::default, |scratch, (index, gradients)| {
                let ((dquery, dkey), dvalue) = gradients;
                let head = self.head(&elements, index);
                let gradient = gradient.matrix(&head.index);
                self.backward_head(&head, gradient, [dquery, dkey, dvalue], scratch);
            });
        let group = sizes.heads / sizes.groups;
        let dkey = sum_of_groups(dkey, group, lengths[1]);
        let dvalue = sum_of_groups(dvalue, group, lengths[2]);
        [
            tensor(dquery, inputs[0].shape(), &inputs[0]),
            tensor(dkey, inputs[1].shape(), &inputs[1]),
            tensor(dvalue, inputs[2].shape(), &inputs[2]),
        ]
    }

    fn backward_head(
        &self,
        head: &Head<'_>,
        gradient: Matrix<'_>,
        [dquery, dkey, dvalue]: [&mut [f32]; 3],
        [shares, dscores]: &mut [Vec<f32>; 2],
    ) {
        let (queries, scale) = (self.0.queries, self.0.scale as f32);
        let (head_dim, value_dim) = (self.0.head_dim, self.0.value_dim);
        for first in (0..queries).step_by(TILE) {
            let rows = first..queries.min(first + TILE);
            let Some(keys) = self.shares(head, &rows, shares) else {
                continue;
            };
            let (height, width) = (rows.len(), keys.len());
            dscores.resize(shares.len(), 0.0);
            let (query, gradient) = (head.query.part(&rows), gradient.part(&rows));
            let (key, value) = (head.key.part(&keys), head.value.part(&keys).transposed());
            multiply(dscores, width, gradient, value, Set(1.0), ALONE);
            let all = shares.chunks(width).zip(dscores.chunks_mut(width));
            all.for_each(|(shares, dscores)| gradients_of_scores(shares, dscores, scale));
            let shares = Matrix::new(shares, height, width).transposed();
            let dscores = Matrix::new(dscores, height, width);
            let to = &mut dvalue[keys.start * value_dim..];
            multiply(to, value_dim, shares, gradient, Add, ALONE);
            let to = &mut dkey[keys.start * head_dim..];
            multiply(to, head_dim, dscores.transposed(), query, Add, ALONE);
            let to = &mut dquery[first * head_dim..];
            multiply(to, head_dim, dscores, key, Set(1.0), ALONE);
        }
    }
}
