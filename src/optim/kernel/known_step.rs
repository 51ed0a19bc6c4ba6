use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::super::format::{LowBits, Noise, Root, StateFormat, StateTensor, Weight, WeightFormat};
use super::super::rule::{AdamW, Moments, UpdateRule};
use super::group_step::GroupStep;
use super::{Rule, covers, formatted, host, in_full, update};

/// A step of AdamW by the kernels of `device`, in full and in formats, and by what uses the device for storage alone.
/// Returns what a kernel has computed where it is another.
pub(crate) fn try_kernels(device: &Device, dtype: FloatDType) -> Result<(), String> {
    let nothing = Tensor::<1>::empty([0], (device, DType::from(dtype)));
    if !covers(&nothing) {
        return Ok(());
    }
    try_full(device, dtype)?;
    match dtype {
        FloatDType::F64 => Ok(()),
        _ => try_groups(device, dtype),
    }
}

fn known_rule() -> AdamW<false> {
    AdamW {
        moments: Moments {
            beta_1: 0.5,
            beta_2: 0.75,
            rest_1: 0.5,
            rest_2: 0.25,
        },
        learning_rate: 0.125,
        decay: 0.5,
        correction_1: 0.5,
        correction_2: 0.25,
        epsilon: 0.0,
    }
}

/// Four elements, with full states.
fn try_full(device: &Device, dtype: FloatDType) -> Result<(), String> {
    let tensor = |elements: [f64; 4]| -> Tensor<1> {
        Tensor::from_data(elements, (device, DType::from(dtype)))
    };
    let parameter = [0.5, -1.0, 2.0, 0.25];
    let gradient = [1.0, -0.5, 0.25, 2.0];
    let states = [[0.25, 0.5, -0.5, 1.0], [1.0, 0.25, 0.0625, 4.0]];
    let (mut expected, mut expected_states) = (parameter, states);
    UpdateRule::<2>::update_lanes(
        &known_rule(),
        &mut expected,
        &gradient,
        &mut expected_states,
    );
    let expected = std::iter::once(expected).chain(expected_states).map(tensor);
    let rule = Rule::new::<2>(known_rule());
    let states = states.map(tensor).to_vec();
    let found = update(rule, tensor(parameter), tensor(gradient), states);
    compare("", std::iter::once(found.0).chain(found.1), expected)
}

/// Two groups, of which one is not filled up, with states in 8 bits, and low bits where the weight is in bf16.
fn try_groups(device: &Device, dtype: FloatDType) -> Result<(), String> {
    const ELEMENTS: usize = 70;
    let tensor = |step: f32| -> Tensor<1> {
        let element = |index| ((index % 8) as f32 - 3.5) * step;
        let elements: Vec<f32> = (0..ELEMENTS).map(element).collect();
        Tensor::from_data(&elements[..], (device, DType::from(dtype)))
    };
    let format = match dtype {
        FloatDType::BF16 => WeightFormat::Split24,
        _ => WeightFormat::Plain,
    };
    let operands = || {
        let weight = Weight {
            value: tensor(0.5),
            format,
            low_bits: LowBits::none(format, ELEMENTS, device),
        };
        let state = |root| {
            let coding = StateFormat::Bits8.coding(root, usize::MAX);
            StateTensor::blank(&weight.value, coding.expect("it is not small"))
        };
        let states = [Root::Signed, Root::Positive].map(state).to_vec();
        (weight, tensor(0.25), states)
    };
    let step = GroupStep {
        rule: Rule::new::<2>(known_rule()),
        noise: Noise::of_step(1),
    };
    let (weight, gradient, states) = operands();
    let (weight, states) = host::update(step.clone(), weight, gradient, states);
    let weight = match weight.low_bits {
        Some(low) => low.joined(weight.value),
        None => weight.value,
    };
    let expected = std::iter::once(weight).chain(states.into_iter().map(StateTensor::full));
    let (weight, gradient, states) = operands();
    let (weight, states) = formatted::update_groups(step, weight, gradient, states);
    let found = std::iter::once(in_full(&weight)).chain(states.into_iter().map(StateTensor::full));
    compare(" in formats", found, expected)
}

fn compare(
    what: &str,
    found: impl Iterator<Item = Tensor<1>>,
    expected: impl Iterator<Item = Tensor<1>>,
) -> Result<(), String> {
    for (operand, (found, expected)) in ["parameter", "first moment", "second moment"]
        .iter()
        .zip(found.zip(expected))
    {
        let [found, expected] = [found, expected].map(read);
        let (found, expected) = (found?, expected?);
        let near = |(a, b): (f64, f64)| (a - b).abs() <= 0.02 * (1.0 + b.abs());
        if !found.iter::<f64>().zip(expected.iter::<f64>()).all(near) {
            return Err(format!(
                "a step of AdamW{what} gave the {operand} {found} instead of {expected}"
            ));
        }
    }
    Ok(())
}

fn read(tensor: Tensor<1>) -> Result<TensorData, String> {
    tensor.try_into_data().map_err(|error| error.to_string())
}
