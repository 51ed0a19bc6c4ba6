use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::super::format::{
    Noise, Residual, SquareRootCode, StateFormat, StateTensor, Weight, WeightFormat,
};
use super::super::rule::{AdamW, Moments, Rule};
use super::{Execution, Update};

/// Runs a step of AdamW by the kernels of `device`, in full and in formats, and by the code for devices that only store
/// tensors. Returns an error if a kernel computes a different result.
pub fn try_kernels(device: &Device, dtype: FloatDType) -> Result<(), String> {
    let nothing = Tensor::<1>::empty([0], (device, DType::from(dtype)));
    if Execution::of(&nothing, true) == Execution::Operations {
        return Ok(());
    }
    try_step(device, dtype, None)?;
    let format = match dtype {
        FloatDType::F64 => return Ok(()),
        FloatDType::BF16 => WeightFormat::Split24,
        _ => WeightFormat::Plain,
    };
    try_step(device, dtype, Some(format))
}

/// Runs a step of two groups, one of them partial; in a format, with states in 8 bits.
fn try_step(
    device: &Device,
    dtype: FloatDType,
    format: Option<WeightFormat>,
) -> Result<(), String> {
    const ELEMENTS: usize = 70;
    let tensor = |step: f32, shift: f32| -> Tensor<1> {
        let element = |index| ((index % 8) as f32 - shift) * step;
        let elements: Vec<f32> = (0..ELEMENTS).map(element).collect();
        Tensor::from_data(&elements[..], (device, DType::from(dtype)))
    };
    let state = |root, step, shift| {
        let full = StateTensor::Full(tensor(step, shift));
        let scheme = StateFormat::Bits8.scheme(root, usize::MAX);
        full.conformed(scheme.filter(|_| format.is_some()))
    };
    let rule = Rule::built_in::<2>(AdamW {
        moments: Moments {
            beta_1: 0.5,
            beta_2: 0.75,
            complement_1: 0.5,
            complement_2: 0.25,
        },
        learning_rate: 0.125,
        decay: 0.5,
        correction_1: 0.5,
        correction_2: 0.25,
        epsilon: 0.0,
    });
    let results = |execution: Execution| -> Result<Vec<TensorData>, String> {
        let update = Update {
            rule: rule.clone(),
            formats: format.map(|format| (format, Noise::of_step(1))),
        };
        let format = format.unwrap_or(WeightFormat::Plain);
        let value = tensor(0.5, 3.5);
        let weight = Weight {
            residual: Residual::none(format, &value),
            value,
            format,
        };
        let states = vec![
            state(SquareRootCode::Signed, 0.25, 4.0),
            state(SquareRootCode::Positive, 0.125, -1.0),
        ];
        let (weight, states) = execution.update(update, weight, tensor(0.25, 3.5), states);
        let value = weight
            .residual
            .map_or(weight.value.clone(), |low| low.joined(weight.value));
        let states = states.into_iter().map(StateTensor::full);
        let written = std::iter::once(value).chain(states);
        let read = written.map(Tensor::try_into_data).collect::<Result<_, _>>();
        read.map_err(|error| error.to_string())
    };
    let execution = Execution::of(&tensor(1.0, 0.0), format.is_none());
    let on_host = match dtype {
        FloatDType::F64 => Execution::Numbers,
        _ => Execution::Blocks,
    };
    let what = if format.is_some() { " in formats" } else { "" };
    let (found, expected) = (results(execution)?, results(on_host)?);
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let near = |(a, b): (f64, f64)| (a - b).abs() <= 0.02 * (1.0 + b.abs());
        if !found.iter::<f64>().zip(expected.iter::<f64>()).all(near) {
            let operand = ["parameter", "first moment", "second moment"][index];
            return Err(format!(
                "a step of AdamW{what} gave the {operand} {found} instead of {expected}"
            ));
        }
    }
    Ok(())
}
