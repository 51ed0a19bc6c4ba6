//! Linear layer with a low-rank adapter. `x` has one consumer, so that its gradient is summed in the same order in each graph.

use backburn_base::AnyTensor;
use burn::tensor::{DType, Tensor};

use crate::elements::{Elements, have_kernel, scaled, tensor};
use crate::node::{Computed, operation};
use crate::product::{Effect::Add, Matrix, ON_POOL, multiply, product};

/// Computes `x * weight + scale * (x * a) * b` of these tensors, `x`, `weight`, `a` and `b`. Returns `None` if the kernel does not
/// compute with them.
pub(crate) fn adapted<const D: usize>(inputs: [AnyTensor; 4], scale: f64) -> Option<Tensor<D>> {
    if !have_kernel(&inputs) || inputs.iter().any(|it| it.dtype() != DType::F32) {
        return None;
    }
    let run = |inputs, needed| kernel(inputs, needed, scale as f32);
    let compose = |_| unreachable!("`flex` has nodes of this crate");
    Some(operation(inputs, run, compose).of_dims())
}

fn kernel(inputs: [AnyTensor; 4], needed: [bool; 4], scale: f32) -> Computed {
    let [x_shape, weight_shape, a_shape, b_shape] = inputs.each_ref().map(|it| it.shape());
    let ([d_input, d_output], rank) = ([weight_shape[0], weight_shape[1]], a_shape[1]);
    let x = Elements::contiguous(&inputs[0]);
    let x = x.flat();
    let rows = x.sizes[0];
    let [weight, a, b] = [1, 2, 3].map(|index: usize| Elements::strided(&inputs[index]));
    let low = scaled(product(x, a.matrix(&[])), scale);
    let mut y = product(x, weight.matrix(&[]));
    let a = Matrix::new(&low, rows, rank);
    multiply(&mut y, d_output, a, b.matrix(&[]), Add, ON_POOL);
    let mut y_shape = x_shape.clone();
    *y_shape.last_mut().expect("`x` has rows") = d_output;
    let output = tensor(y, y_shape, &inputs[0]);
    let [x_needed, weight_needed, a_needed, b_needed] = needed;
    let kept = [
        weight_needed || a_needed,
        x_needed,
        x_needed,
        x_needed || a_needed,
    ];
    Computed::keeping(kept, output, move |gradient, [x, weight, a, b]| {
        let dy = Elements::contiguous(&gradient);
        let dy = dy.flat();
        let dlow = b.map_or_else(Vec::new, |b| {
            let b = Elements::strided(&b);
            scaled(product(dy, b.matrix(&[]).transposed()), scale)
        });
        let dlow = Matrix::new(&dlow, rows, rank);
        let mut gradients: [Option<AnyTensor>; 4] = [const { None }; 4];
        if let (Some(weight), Some(a)) = (weight, a) {
            let (weight, a) = (Elements::strided(&weight), Elements::strided(&a));
            let mut dx = product(dy, weight.matrix(&[]).transposed());
            let a = a.matrix(&[]).transposed();
            multiply(&mut dx, d_input, dlow, a, Add, ON_POOL);
            gradients[0] = Some(tensor(dx, x_shape, &gradient));
        }
        if let Some(x) = x {
            let x = Elements::contiguous(&x);
            let x = x.flat().transposed();
            gradients[1] = weight_needed.then(|| tensor(product(x, dy), weight_shape, &gradient));
            gradients[2] = a_needed.then(|| tensor(product(x, dlow), a_shape, &gradient));
        }
        if b_needed {
            let low = Matrix::new(&low, rows, rank);
            gradients[3] = Some(tensor(product(low.transposed(), dy), b_shape, &gradient));
        }
        gradients
    })
}
