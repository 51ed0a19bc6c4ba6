//! Rotary positions.

use std::array::from_fn;

use backburn_base::{AnyTensor, in_type};
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::elements::{Elements, have_kernel, rows_of_task, tensor, wide};
use crate::node::{Computed, operation};
use crate::simd::vectorized;

/// Rotates each head by its position ([Su et al., 2021](https://arxiv.org/abs/2104.09864)): an element `a` of the first half with the
/// element `b` of the second half at the same place, as the decoders of Hugging Face do. Burn's `RotaryEncoding` rotates neighbours.
///
/// The results are `a * cos - b * sin` and `b * cos + a * sin`. For the backward pass it keeps the tables `cos` and `sin` only:
/// gradients are rotated backwards. The tables are constants and get no gradient.
///
/// # Shapes
///
/// - heads, output: `[batch, heads, length, head_dim]`, an even `head_dim`
/// - cos, sin: `[1, 1, length, head_dim / 2]`, or `[batch, 1, length, head_dim / 2]` if each sequence has its own positions
///
/// # Panics
///
/// If the shapes differ from those above.
pub fn rotary(heads: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let [batch, _, length, head_dim] = heads.dims();
    assert!(
        head_dim % 2 == 0,
        "`heads` has the shape {:?}: its last dimension must be even",
        heads.dims()
    );
    for (table, name) in [(cos.dims(), "cos"), (sin.dims(), "sin")] {
        assert!(
            [1, batch].contains(&table[0]) && table[1..] == [1, length, head_dim / 2],
            "`{name}` has the shape {table:?}: it must be [1 or {batch}, 1, {length}, {}] for `heads` of the shape {:?}",
            head_dim / 2,
            heads.dims()
        );
    }
    let tables = [cos, sin].map(Tensor::inner);
    let run = |[heads]: [AnyTensor; 1], _: [bool; 1]| {
        let output = rotated(heads.of_rank(), &tables, false).into();
        let tables = tables.clone();
        Computed::new(output, move |gradient| {
            [AnyTensor::from(rotated(gradient.of_rank(), &tables, true))]
        })
    };
    operation([heads.into()], run, |[heads]| {
        composed(heads.of_rank(), &tables, false).into()
    })
    .of_rank()
}

/// Rotates `heads` by their positions, or backwards.
fn rotated(heads: Tensor<4>, tables: &[Tensor<4>; 2], is_backwards: bool) -> Tensor<4> {
    let heads = AnyTensor::from(heads);
    let all = tables.clone().map(AnyTensor::from);
    match have_kernel(&all) && have_kernel(std::slice::from_ref(&heads)) {
        true => kernel(&heads, &all, is_backwards),
        false => composed(heads.of_rank(), tables, is_backwards),
    }
}

fn composed(heads: Tensor<4>, tables: &[Tensor<4>; 2], is_backwards: bool) -> Tensor<4> {
    let dtype = heads.dtype();
    let heads = in_type(heads, wide(dtype));
    let [cos, sin] = tables.clone().map(|table| in_type(table, wide(dtype)));
    let sin = if is_backwards { sin.neg() } else { sin };
    let half = heads.dims()[3] / 2;
    let (first, second) = (
        heads.clone().narrow(3, 0, half),
        heads.narrow(3, half, half),
    );
    let turned = first.clone() * cos.clone() - second.clone() * sin.clone();
    let other = second * cos + first * sin;
    in_type(Tensor::cat(vec![turned, other], 3), dtype)
}

/// Stores the output in the order `[batch, length, heads, head_dim]`, in which the layers before and after read it.
fn kernel(heads: &AnyTensor, tables: &[AnyTensor; 2], is_backwards: bool) -> Tensor<4> {
    let [batch, count, length, head_dim] = heads.shape().dims();
    let elements = Elements::rows(heads);
    let [batch_stride, head_stride, row_stride, _] = elements.strides::<4>();
    let table_elements = tables.each_ref().map(Elements::rows);
    let strides = table_elements.each_ref().map(Elements::strides::<4>);
    let (position, half) = (count * head_dim, head_dim / 2);
    let task = rows_of_task(position);
    let mut to = vec![0.0; batch * length * position];
    let tasks = to.par_chunks_mut((task * position).max(1)).enumerate();
    tasks.for_each(|(index, to)| {
        for (row, to) in to.chunks_mut(position).enumerate() {
            let (batch, row) = ((index * task + row) / length, (index * task + row) % length);
            let [cos, sin] = from_fn(|table| {
                let [of_batch, _, of_row, _] = strides[table];
                // A table that all sequences share has any stride.
                let is_shared = tables[table].shape()[0] == 1;
                let batch = if is_shared { 0 } else { batch };
                &table_elements[table].get()[batch * of_batch + row * of_row..][..half]
            });
            for (head, to) in to.chunks_mut(head_dim).enumerate() {
                let start = batch * batch_stride + head * head_stride + row * row_stride;
                let from = &elements.get()[start..][..head_dim];
                rotate(from, cos, sin, to, if is_backwards { -1.0 } else { 1.0 });
            }
        }
    });
    let output = tensor(to, [batch, length, count, head_dim], heads);
    output.of_rank::<4>().swap_dims(1, 2)
}

vectorized! {
    fn rotate(from: &[f32], cos: &[f32], sin: &[f32], to: &mut [f32], sign: f32) -> () {
        let half = cos.len();
        let (first, second) = from.split_at(half);
        let (to_first, to_second) = to.split_at_mut(half);
        for index in 0..half {
            let (cos, sin) = (cos[index], sin[index] * sign);
            to_first[index] = first[index] * cos - second[index] * sin;
            to_second[index] = second[index] * cos + first[index] * sin;
        }
    }
}
