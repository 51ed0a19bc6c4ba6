//! The single pass on a device that a server hosts: an operation that the server runs with the kernel of its own
//! backend.

use std::iter::once;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, Remote, TensorMetadata};
use burn::remote::CustomOpClient;
use burn::tensor::Tensor;
use burn_ir::{BackendIr, CustomOpIr, HandleContainer, ScalarIr, TensorIr};

use super::super::format::{StateTensor, Weight};
use super::super::rule::{Rule, Traced};
use super::fit::check_sent;
use super::single_pass::{Operands, SinglePass};
use super::{Update, Way};

/// The name of the operation. Client and server of different versions could mean something else by the same numbers.
pub(crate) const UPDATE: &str = concat!("backburn::update/", env!("CARGO_PKG_VERSION"));

impl SinglePass for Remote {
    fn update(
        gradient: FloatTensor<Self>,
        operands: Operands<Self>,
        update: Update,
    ) -> Operands<Self> {
        let floats = operands.into_floats();
        let client = CustomOpClient::new(&gradient.device());
        let output = |tensor: &FloatTensor<Self>| {
            TensorIr::uninit(client.create_empty_handle(), tensor.shape(), tensor.dtype())
        };
        let outputs: Vec<TensorIr> = floats.iter().map(output).collect();
        let inputs = [gradient].into_iter().chain(floats);
        let inputs: Vec<TensorIr> = inputs.map(|tensor| tensor.into_ir()).collect();
        let scalars = scalars(update.traced());
        let operation = CustomOpIr::with_scalars(UPDATE, &inputs, &outputs, scalars);
        Operands::of_floats(client.register(operation))
    }
}

/// A server that hosts it has the processor do what clients send.
impl SinglePass for Flex {
    fn update(
        gradient: FloatTensor<Self>,
        operands: Operands<Self>,
        update: Update,
    ) -> Operands<Self> {
        // Whatever their rank is.
        let tensor = Tensor::<1>::from_primitive::<Self>;
        let mut floats = operands.into_floats().into_iter().map(tensor);
        let weight = Weight::plain(floats.next().expect("a weight is there"));
        let states = floats.map(StateTensor::Full).collect();
        let way = Way::of(&weight.value, true);
        let (weight, states) = way.update(update, weight, tensor(gradient), states);
        let states = states.into_iter().map(StateTensor::full);
        let written = once(weight.value)
            .chain(states)
            .map(Tensor::try_into_primitive::<Self>);
        Operands::of_floats(written.map(|tensor| tensor.expect("it is where it was")))
    }
}

/// The formula as scalars: its words, then its numbers.
fn scalars(formula: Traced) -> Vec<ScalarIr> {
    let (words, numbers) = formula.into_words();
    let numbers = numbers.into_iter().map(ScalarIr::Float);
    let words = words.into_iter().map(ScalarIr::UInt);
    words.chain(numbers).collect()
}

/// The server's side. Kernels trust their operands, and a client may send anything: what does not fit ends its session, by a panic, as Burn's own
/// operations do, before anything is launched.
pub(crate) fn run_update<B: BackendIr + SinglePass>(
    handles: &mut HandleContainer<B::Handle>,
    operation: &CustomOpIr,
) {
    let (gradient, operands, rule) = received::<B>(handles, operation)
        .unwrap_or_else(|reason| panic!("an update that a client has sent is refused: {reason}"));
    let update = Update {
        rule,
        formats: None,
    };
    let updated = B::update(gradient, operands, update).into_floats();
    for (output, tensor) in operation.outputs.iter().zip(updated) {
        handles.register_float_tensor::<B>(&output.id, tensor);
    }
}

/// The gradient, the operands and the rule of an update from a client, if they fit each other.
fn received<B: BackendIr>(
    handles: &mut HandleContainer<B::Handle>,
    operation: &CustomOpIr,
) -> Result<(FloatTensor<B>, Operands<B>, Rule), String> {
    let [gradient, parameter, states @ ..] = &operation.inputs[..] else {
        return Err("it has no gradient or no parameter".to_string());
    };
    let rule = rule(&operation.scalars, states.len());
    let rule = rule.ok_or("it is no rule for so many states")?;
    let outputs = operation.outputs.len();
    if outputs != 1 + states.len() {
        return Err(format!(
            "it has {outputs} outputs for a parameter and {} states",
            states.len()
        ));
    }
    // What they hold, and not what the client says that they do.
    let mut get = |input: &TensorIr| handles.get_float_tensor::<B>(input);
    let (gradient, parameter) = (get(gradient), get(parameter));
    let states: Vec<_> = states.iter().map(get).collect();
    check_sent(&rule, &parameter, &gradient, &states)?;
    let operands = Operands::of_floats([parameter].into_iter().chain(states));
    Ok((gradient, operands, rule))
}

/// The rule of these scalars, for so many states.
fn rule(scalars: &[ScalarIr], states: usize) -> Option<Rule> {
    let (mut words, mut numbers) = (Vec::new(), Vec::new());
    for scalar in scalars {
        match scalar {
            ScalarIr::UInt(word) if numbers.is_empty() => words.push(*word),
            ScalarIr::Float(number) => numbers.push(*number),
            _ => return None,
        }
    }
    let traced = Traced::of_words(states, &words, numbers)?;
    match states {
        0 => Some(Rule::new::<0>(traced)),
        1 => Some(Rule::new::<1>(traced)),
        2 => Some(Rule::new::<2>(traced)),
        3 => Some(Rule::new::<3>(traced)),
        _ => None,
    }
}
