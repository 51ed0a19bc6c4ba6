//! Linear layer.

use backburn_base::AnyTensor;
use burn::module::{LoraAdapter, Param};
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::module::linear as burn_linear;
use rayon::prelude::*;

use crate::adapter::adapted;
use crate::check_shape;
use crate::elements::{
    Elements, add_all, have_kernel, is_transposed, rows_of_task, sum_of_tasks, tensor,
};
use crate::node::{Computed, operation};
use crate::product::{Effect::Add, ON_POOL, multiply, product};

/// Computes `y = x * weight + bias`, as [`Linear::forward`] does.
///
/// For the backward pass the tape keeps `x` and the weight, as with Burn. With `dy` for the gradient of `y`, the gradient of `x` is
/// `dy * weight^T`, that of the weight is `x^T * dy`, and that of the bias is `dy` summed over the rows. On `flex` a product takes
/// one buffer. Burn 0.22 takes two: it fills one with zeros, and copies it into the other before it multiplies. f64,
/// inputs of several types and other backends have Burn's operation.
///
/// In f32 on `flex`, a weight with Burn's [`LoraAdapter`] is not composed: the result is `x * weight + scale * (x * a) * b + bias`
/// ([Hu et al., 2021](https://arxiv.org/abs/2106.09685)), and the tape keeps `x`, `x * a` and the parameters. A frozen weight then has
/// no dense gradient, which takes about half of the time of the backward pass. If `x * a` is infinite, the result is NaN where `b` is 0.
///
/// # Shapes
///
/// - x: `[.., d_input]`
/// - output: `[.., d_output]`
///
/// # Panics
///
/// If the last dimension of `x` is not the first one of the weight, the bias has another length than the second one, or the factors of
/// an adapter don't fit the weight.
pub fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    let (weight, bias) = (&layer.weight, layer.bias.as_ref().map(Param::val));
    let ([d_input, d_output], row) = (weight.dims(), x.dims()[D - 1]);
    let weight_name = "the weight of `layer`";
    check_shape(weight_name, [d_input, d_output], [row, d_output], "`x`");
    if let Some(bias) = &bias {
        check_shape("the bias of `layer`", bias.dims(), [d_output], weight_name);
    }
    if let Some(adapter) = weight.reparameterization::<LoraAdapter>() {
        let (base, a, b) = (weight.base(), adapter.a.val(), adapter.b.val());
        let (factors, [_, rank]) = ([a.dims(), b.dims()], a.dims());
        let name = "the factors of the adapter of `layer`";
        check_shape(
            name,
            factors,
            [[d_input, rank], [rank, d_output]],
            weight_name,
        );
        let inputs = [x.clone().into(), base.into(), a.into(), b.into()];
        if let Some(y) = adapted(inputs, adapter.scale) {
            return match bias {
                Some(bias) => y + bias.unsqueeze(),
                None => y,
            };
        }
    }
    let weight = weight.val();
    match bias {
        Some(bias) => multiplied::<D, 3>([x.into(), weight.into(), bias.into()]),
        None => multiplied::<D, 2>([x.into(), weight.into()]),
    }
}

/// Multiplies the first two of `inputs`, and adds the third if there is one.
fn multiplied<const D: usize, const N: usize>(inputs: [AnyTensor; N]) -> Tensor<D> {
    let compose = |inputs: [AnyTensor; N]| {
        let bias = inputs.get(2).map(|bias| bias.0.clone());
        let [x, weight] = [0, 1].map(|index| inputs[index].clone());
        burn_linear::<D>(x.of_dims(), weight.of_dims(), bias).into()
    };
    let dtype = inputs[0].dtype();
    match have_kernel(&inputs) && inputs.iter().all(|it| it.dtype() == dtype) {
        true => operation(inputs, kernel, compose),
        false => compose(inputs),
    }
    .of_dims()
}

fn kernel<const N: usize>(inputs: [AnyTensor; N], needed: [bool; N]) -> Computed {
    let (shape, layer) = (inputs[0].shape(), inputs[1].shape());
    let [d_input, d_output] = layer.dims();
    let x = Elements::contiguous(&inputs[0]);
    let weight = Elements::strided(&inputs[1]);
    // The gradient has the layout of the weight.
    let is_transposed = is_transposed(&inputs[1]);
    let (x, weight) = (x.flat(), weight.matrix(&[]));
    let y = match inputs.get(2) {
        Some(bias) => {
            let mut y = Elements::contiguous(bias).get().repeat(x.sizes[0]);
            multiply(&mut y, d_output, x, weight, Add, ON_POOL);
            y
        }
        None => product(x, weight),
    };
    let mut y_shape = shape.clone();
    *y_shape.last_mut().expect("`x` has rows") = d_output;
    let output = tensor(y, y_shape, &inputs[0]);
    let mut kept = [false; N];
    [kept[0], kept[1]] = [needed[1], needed[0]];
    Computed::keeping(kept, output, move |gradient, mut kept| {
        let elements = Elements::contiguous(&gradient);
        let dy = elements.flat();
        let mut gradients: [Option<AnyTensor>; N] = [const { None }; N];
        if let Some(weight) = kept[1].take() {
            let weight = Elements::strided(&weight);
            let dx = product(dy, weight.matrix(&[]).transposed());
            gradients[0] = Some(tensor(dx, shape, &gradient));
        }
        if let Some(x) = kept[0].take() {
            let x = Elements::contiguous(&x);
            let x = x.flat();
            gradients[1] = Some(match is_transposed {
                true => {
                    let transposed = product(dy.transposed(), x);
                    let transposed = tensor(transposed, [d_output, d_input], &gradient);
                    transposed.of_dims::<2>().transpose().into()
                }
                false => tensor(product(x.transposed(), dy), layer, &gradient),
            });
        }
        if needed.get(2) == Some(&true) {
            let sums = sum_of_rows(elements.get(), d_output);
            gradients[2] = Some(tensor(sums, [d_output], &gradient));
        }
        gradients
    })
}

/// Sums rows of `length` elements.
fn sum_of_rows(rows: &[f32], length: usize) -> Vec<f32> {
    let row = length.max(1);
    let tasks = rows
        .par_chunks(rows_of_task(rows.len(), row) * row)
        .map(|rows| {
            let mut sums = vec![0.0; length];
            for row in rows.chunks(row) {
                add_all(&mut sums, row);
            }
            sums
        });
    sum_of_tasks(tasks.collect(), length)
}
