use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::super::rule::{AdamW, Moments, Rule};
use super::{covers, plain, update};

/// A step of AdamW on four elements, by the kernel of `device` and by the plain rule, which uses the device for
/// storage alone. Returns what the kernel has computed where it is another.
pub(crate) fn try_kernel(device: &Device, dtype: FloatDType) -> Result<(), String> {
    let tensor = |elements: [f64; 4]| -> Tensor<1> {
        Tensor::from_data(elements, (device, DType::from(dtype)))
    };
    let parameter = tensor([0.5, -1.0, 2.0, 0.25]);
    if !covers(&parameter) {
        return Ok(());
    }
    let operands = || {
        let gradient = tensor([1.0, -0.5, 0.25, 2.0]);
        let states = [[0.25, 0.5, -0.5, 1.0], [1.0, 0.25, 0.0625, 4.0]];
        (gradient, states.map(tensor))
    };
    let rule = Rule::AdamW(AdamW::<false> {
        moments: Moments::new(0.5, 0.75),
        learning_rate: 0.125,
        decay: 0.5,
        correction_1: 0.5,
        correction_2: 0.25,
        epsilon: 0.0,
    });
    let (gradient, states) = operands();
    let expected = plain::update(rule, parameter.clone(), gradient, states.into());
    let (gradient, states) = operands();
    let found = update(rule, parameter, gradient, states);
    let found = std::iter::once(found.0).chain(found.1);
    let expected = std::iter::once(expected.0).chain(expected.1);
    for (operand, (found, expected)) in ["parameter", "first moment", "second moment"]
        .iter()
        .zip(found.zip(expected))
    {
        let [found, expected] = [found, expected].map(read);
        let (found, expected) = (found?, expected?);
        let near = |(a, b): (f64, f64)| (a - b).abs() <= 0.02 * (1.0 + b.abs());
        if !found.iter::<f64>().zip(expected.iter::<f64>()).all(near) {
            return Err(format!(
                "a step of AdamW gave the {operand} {found} instead of {expected}"
            ));
        }
    }
    Ok(())
}

fn read(tensor: Tensor<1>) -> Result<TensorData, String> {
    tensor.try_into_data().map_err(|error| error.to_string())
}
