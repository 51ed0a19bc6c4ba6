use burn::tensor::{DType, Device, FloatDType, Tensor};

/// Tests Burn's kernels, with numbers and results that every float type represents exactly.
pub(super) fn run(device: &Device, dtype: FloatDType) -> Result<(), String> {
    let options = || (device, DType::from(dtype));
    let x = Tensor::<1>::from_data([0.5, -1.0, 2.0, 0.25], options());
    let y = Tensor::<1>::from_data([1.5, 0.5, -3.0, 0.75], options());
    let sum = x.clone() + y;
    let found = [
        ("0.5 + 1.5, ..", sum.clone(), [2.0, -0.5, -1.0, 1.0]),
        ("2.0 * 0.5, ..", sum * x, [1.0, 0.5, -2.0, 0.25]),
    ];
    for (operation, found, expected) in found {
        let data = found.try_into_data().map_err(|error| error.to_string())?;
        let found: Vec<f64> = data.iter::<f64>().collect();
        if found != expected {
            return Err(format!(
                "{operation} gave {found:?} instead of {expected:?}"
            ));
        }
    }
    Ok(())
}
