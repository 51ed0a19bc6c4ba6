use burn::tensor::{DType, Element, Tensor, TensorData};
use num_traits::Float;

use super::super::rule::{Rule, UpdateRule};

/// Applies `rule` to one element after the other, on the host: for backends without a kernel, and to
/// show what a kernel does. Half types are computed in f32.
pub(super) fn update<const D: usize>(
    rule: Rule,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    states: Vec<Tensor<D>>,
) -> (Tensor<D>, Vec<Tensor<D>>) {
    match parameter.dtype() {
        DType::F64 => by_rule::<f64, D>(rule, parameter, gradient, states),
        _ => by_rule::<f32, D>(rule, parameter, gradient, states),
    }
}

fn by_rule<F: Float + Element, const D: usize>(
    rule: Rule,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    states: Vec<Tensor<D>>,
) -> (Tensor<D>, Vec<Tensor<D>>) {
    match (rule, states.len()) {
        (Rule::Adam(rule), 2) => each::<F, D, 2>(rule, parameter, gradient, states),
        (Rule::Adam(rule), _) => each::<F, D, 3>(rule, parameter, gradient, states),
        (Rule::AdamW(rule), 2) => each::<F, D, 2>(rule, parameter, gradient, states),
        (Rule::AdamW(rule), _) => each::<F, D, 3>(rule, parameter, gradient, states),
        (Rule::CautiousAdamW(rule), 2) => each::<F, D, 2>(rule, parameter, gradient, states),
        (Rule::CautiousAdamW(rule), _) => each::<F, D, 3>(rule, parameter, gradient, states),
        (Rule::Lion(rule), _) => each::<F, D, 1>(rule, parameter, gradient, states),
        (Rule::Sgd(rule), 0) => each::<F, D, 0>(rule, parameter, gradient, states),
        (Rule::Sgd(rule), _) => each::<F, D, 1>(rule, parameter, gradient, states),
    }
}

fn each<F: Float + Element, const D: usize, const S: usize>(
    rule: impl UpdateRule<S>,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    states: Vec<Tensor<D>>,
) -> (Tensor<D>, Vec<Tensor<D>>) {
    let (shape, device, dtype) = (parameter.shape(), parameter.device(), parameter.dtype());
    let read = |tensor: Tensor<D>| -> Vec<F> { tensor.into_data().iter::<F>().collect() };
    let write = |elements: Vec<F>| {
        let data = TensorData::new(elements, shape.clone());
        Tensor::from_data(data, (&device, dtype))
    };
    let mut parameter = read(parameter);
    let gradient = read(gradient);
    let mut states: Vec<Vec<F>> = states.into_iter().map(read).collect();
    for (index, gradient) in gradient.into_iter().enumerate() {
        let before = std::array::from_fn(|state| states[state][index]);
        let (after, states_after) = rule.update(parameter[index], gradient, before);
        parameter[index] = after;
        for (state, after) in states.iter_mut().zip(states_after) {
            state[index] = after;
        }
    }
    (write(parameter), states.into_iter().map(write).collect())
}
