use burn::tensor::{DType, Element, Tensor, TensorData};
use num_traits::Float;

use super::super::rule::{Rule, RuleVisitor, UpdateRule};

/// Applies `rule` to one element after the other, on the host: for backends without a kernel, and to
/// show what a kernel does. Half types are computed in f32.
pub(super) fn update<const D: usize>(
    rule: Rule,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    states: Vec<Tensor<D>>,
) -> (Tensor<D>, Vec<Tensor<D>>) {
    match parameter.dtype() {
        DType::F64 => each::<f64, D>(rule, parameter, gradient, states),
        _ => each::<f32, D>(rule, parameter, gradient, states),
    }
}

fn each<F: Float + Element, const D: usize>(
    rule: Rule,
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
    let mut states: Vec<Vec<F>> = states.into_iter().map(read).collect();
    let elements = Elements {
        parameter: &mut parameter,
        gradient: read(gradient),
        states: &mut states,
    };
    rule.accept(elements.states.len(), elements);
    (write(parameter), states.into_iter().map(write).collect())
}

struct Elements<'a, F> {
    parameter: &'a mut [F],
    gradient: Vec<F>,
    states: &'a mut [Vec<F>],
}

impl<F: Float> RuleVisitor for Elements<'_, F> {
    type Output = ();

    fn visit<const S: usize>(self, rule: impl UpdateRule<S>) {
        for (index, gradient) in self.gradient.into_iter().enumerate() {
            let before = std::array::from_fn(|state| self.states[state][index]);
            let (after, states) = rule.update(self.parameter[index], gradient, before);
            self.parameter[index] = after;
            for (state, after) in self.states.iter_mut().zip(states) {
                state[index] = after;
            }
        }
    }
}
