//! Rotary positions.

use backburn_base::{AnyTensor, in_type};
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::check_shape;
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
    let ([batch, count, length, _], [.., half]) = (heads.dims(), cos.dims());
    check_shape(
        "`heads`",
        heads.dims(),
        [batch, count, length, 2 * half],
        "`cos`",
    );
    for (table, name) in [(cos.dims(), "`cos`"), (sin.dims(), "`sin`")] {
        let tables = if table[0] == 1 { 1 } else { batch };
        check_shape(name, table, [tables, 1, length, half], "`heads`");
    }
    let [cos, sin] = [cos, sin].map(|table| AnyTensor::from(table.inner()));
    let run = |[heads]: [AnyTensor; 1], _| {
        let (cos, sin) = (cos.clone(), sin.clone());
        let output = rotated([heads, cos.clone(), sin.clone()], false);
        Computed::new(output, move |gradient| {
            [rotated([gradient, cos, sin], true)]
        })
    };
    let compose = |[heads]: [AnyTensor; 1]| composed([heads, cos.clone(), sin.clone()], false);
    operation([heads.into()], run, compose).of_rank()
}

/// Rotates heads, the first of `all`, by their positions, or backwards. The others are `cos` and `sin`.
fn rotated(all: [AnyTensor; 3], is_backwards: bool) -> AnyTensor {
    match have_kernel(&all) {
        true => kernel(&all, is_backwards),
        false => composed(all, is_backwards),
    }
}

fn composed(all: [AnyTensor; 3], is_backwards: bool) -> AnyTensor {
    let dtype = all[0].dtype();
    let [heads, cos, sin] = all.map(|it| in_type(it.of_rank::<4>(), wide(dtype)));
    let sin = if is_backwards { sin.neg() } else { sin };
    let half = heads.dims()[3] / 2;
    let (first, second) = (
        heads.clone().narrow(3, 0, half),
        heads.narrow(3, half, half),
    );
    let turned = first.clone() * cos.clone() - second.clone() * sin.clone();
    let other = second * cos + first * sin;
    in_type(Tensor::cat(vec![turned, other], 3), dtype).into()
}

/// Stores the output in the order `[batch, length, heads, head_dim]`, in which the layers before and after read it.
fn kernel(all: &[AnyTensor; 3], is_backwards: bool) -> AnyTensor {
    let [batch, count, length, head_dim] = all[0].shape().dims();
    let [heads, cos, sin] = all.each_ref().map(Elements::rows);
    let (position, sign) = (count * head_dim, if is_backwards { -1.0 } else { 1.0 });
    let task = rows_of_task(position);
    let mut to = vec![0.0; batch * length * position];
    let tasks = to.par_chunks_mut((task * position).max(1)).enumerate();
    tasks.for_each(|(index, to)| {
        for (row, to) in to.chunks_mut(position).enumerate() {
            let (batch, row) = ((index * task + row) / length, (index * task + row) % length);
            // All sequences may share a table.
            let [cos, sin] = [&cos, &sin].map(|it| it.row(&[batch.min(it.shape[0] - 1), 0, row]));
            for (head, to) in to.chunks_mut(head_dim).enumerate() {
                rotate(heads.row(&[batch, head, row]), cos, sin, to, sign);
            }
        }
    });
    let output = tensor(to, [batch, length, count, head_dim], &all[0]);
    output.of_rank::<4>().swap_dims(1, 2).into()
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
