//! Dequantization by tensor operations, for devices whose memory can't be read directly.

use burn::tensor::{Bool, DType, FloatDType, Tensor};

use super::format::{BaseFormat, GROUP, LEVELS, SCALE};

/// Returns the weights in `rows`, in order, in f32: the numbers that [`super::values::add`] adds.
pub(super) fn dequantized(rows: Tensor<2>, format: BaseFormat) -> Tensor<1> {
    let [groups, row] = rows.dims();
    // The scale is one, so the values are the signed bytes.
    let bytes = rows.dequantize().cast(FloatDType::F32);
    let codes = bytes.clone().slice([0..groups, SCALE..row]);
    let (is_even, scale) = scale(unsigned(bytes.slice([0..groups, 0..SCALE])));
    let levels = match format {
        BaseFormat::Bits8 => codes,
        BaseFormat::Bits4 => {
            let codes = unsigned(codes);
            let high = codes.clone().div_scalar(16.0).floor();
            let low = codes - high.clone().mul_scalar(16.0);
            let pairs: Tensor<3> = Tensor::stack(vec![low, high], 2);
            let codes: Tensor<2> = pairs.reshape([groups, GROUP]) + is_even.mul_scalar(16.0);
            let levels =
                Tensor::<1>::from_data(LEVELS.as_flattened(), (&codes.device(), DType::F32));
            let codes = codes.reshape([groups * GROUP]).int();
            levels.select(0, codes).reshape([groups, GROUP])
        }
    };
    (levels * scale).reshape([groups * GROUP])
}

/// Converts signed to unsigned bytes.
fn unsigned(bytes: Tensor<2>) -> Tensor<2> {
    let is_negative = numbers(bytes.clone().lower_elem(0.0));
    bytes + is_negative.mul_scalar(256.0)
}

/// Returns one for `true`, in f32: `float` alone returns the default type of the device.
fn numbers(are_true: Tensor<2, Bool>) -> Tensor<2> {
    are_true.float().cast(FloatDType::F32)
}

/// Returns the signs (one for a negative number) and magnitudes of f32 numbers from their four bytes. Intermediate
/// results are integers below 2^24, and powers of two.
fn scale(bytes: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let [groups, _] = bytes.dims();
    let byte = |place| bytes.clone().slice([0..groups, place..place + 1]);
    let exponent_bit = numbers(byte(2).greater_equal_elem(128.0));
    let sign = numbers(byte(3).greater_equal_elem(128.0));
    let highest = byte(3) - sign.clone().mul_scalar(128.0);
    let exponent = highest.mul_scalar(2.0) + exponent_bit.clone();
    let high = byte(2) - exponent_bit.mul_scalar(128.0);
    let mantissa = high.mul_scalar(65_536.0) + byte(1).mul_scalar(256.0) + byte(0);
    let powers: Vec<f32> = (0..255)
        .map(|exponent| match exponent {
            0 => 0.0,
            _ => 2_f32.powi(exponent - 127 - 23),
        })
        .collect();
    let powers = Tensor::<1>::from_data(&*powers, (&bytes.device(), DType::F32));
    let powers = powers.select(0, exponent.reshape([groups]).int());
    let magnitude = mantissa.add_scalar(8_388_608.0) * powers.reshape([groups, 1]);
    (sign, magnitude)
}
