//! The single pass on a device that a server hosts: an operation that the server runs with the kernel of its own
//! backend.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Remote, TensorMetadata};
use burn::remote::CustomOpClient;
use burn_ir::{BackendIr, CustomOpIr, HandleContainer, ScalarIr, TensorIr};

use super::super::rule::{Rule, RuleNumbers};
use super::extension::{Operands, SinglePass};

/// The name of the operation. Client and server of different versions could mean something else by the same numbers.
pub(crate) const UPDATE: &str = concat!("backburn::update/", env!("CARGO_PKG_VERSION"));

impl SinglePass for Remote {
    fn update(gradient: FloatTensor<Self>, operands: Operands<Self>, rule: Rule) -> Operands<Self> {
        let (parameter, states) = operands.into_parts();
        let client = CustomOpClient::new(&parameter.device());
        let written = [&parameter].into_iter().chain(&states);
        let outputs: Vec<TensorIr> = written
            .map(|tensor| {
                TensorIr::uninit(client.create_empty_handle(), tensor.shape(), tensor.dtype())
            })
            .collect();
        let inputs = [gradient, parameter].into_iter().chain(states);
        let inputs: Vec<TensorIr> = inputs.map(|tensor| tensor.into_ir()).collect();
        let operation = CustomOpIr::with_scalars(UPDATE, &inputs, &outputs, scalars(rule));
        let mut updated = client.register(operation).into_iter();
        let parameter = updated.next().expect("the operation has this output");
        Operands::new(parameter, updated.collect())
    }
}

fn scalars(rule: Rule) -> Vec<ScalarIr> {
    let RuleNumbers { kind, numbers } = rule.into_numbers();
    let numbers = numbers.into_iter().map(ScalarIr::Float);
    [ScalarIr::UInt(kind)].into_iter().chain(numbers).collect()
}

/// The server's side.
pub(crate) fn run_update<B: BackendIr + SinglePass>(
    handles: &mut HandleContainer<B::Handle>,
    operation: &CustomOpIr,
) {
    let (kind, numbers) = operation.scalars.split_first().expect("a rule has a kind");
    let rule = Rule::of_numbers(&RuleNumbers {
        kind: kind.elem(),
        numbers: numbers.iter().map(|number| number.elem()).collect(),
    });
    let rule = rule.expect("client and server run the same version of backburn");
    let mut inputs = operation.inputs.iter();
    let mut next = || {
        inputs
            .next()
            .map(|input| handles.get_float_tensor::<B>(input))
    };
    let (gradient, parameter) = next()
        .zip(next())
        .expect("a step has a gradient and a parameter");
    let states = std::iter::from_fn(next).collect();
    let (parameter, states) =
        B::update(gradient, Operands::new(parameter, states), rule).into_parts();
    assert_eq!(operation.outputs.len(), 1 + states.len());
    let updated = [parameter].into_iter().chain(states);
    for (output, tensor) in operation.outputs.iter().zip(updated) {
        handles.register_float_tensor::<B>(&output.id, tensor);
    }
}
