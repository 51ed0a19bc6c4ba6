//! Quantization of weights to rows of bytes: the scale of a group, and its quantized values.

use rayon::prelude::*;

use super::format::{BaseFormat, GROUP, LEVELS, SCALE};

/// Candidate scales for a group in 4 bits, relative to the one that reaches its largest weight.
const SCALES: [f32; 8] = [1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72];

/// Minimum number of groups per thread.
const GROUPS_PER_THREAD: usize = 512;

/// Spare capacity in bytes. Burn appends the scale of a tensor to its bytes, and would reallocate without it.
const SPARE: usize = 64;

/// Quantizes `values`, which are finite, to rows; the last group is padded with zeros.
pub(super) fn quantized(values: &[f32], format: BaseFormat) -> Vec<u8> {
    let bytes = values.len().div_ceil(GROUP) * format.row();
    let mut rows = Vec::with_capacity(bytes + SPARE);
    rows.resize(bytes, 0);
    let encode = |(row, values)| encode(values, format, row);
    rows.par_chunks_mut(format.row())
        .zip(values.par_chunks(GROUP))
        .with_min_len(GROUPS_PER_THREAD)
        .for_each(encode);
    rows
}

/// Multiplies `values` by `scale`, and adds the weights in `rows`.
pub(super) fn add(rows: &[u8], format: BaseFormat, scale: f32, values: &mut [f32]) {
    let add = |(row, values)| add_group(row, format, scale, values);
    rows.par_chunks(format.row())
        .zip(values.par_chunks_mut(GROUP))
        .with_min_len(GROUPS_PER_THREAD)
        .for_each(add);
}

fn encode(values: &[f32], format: BaseFormat, row: &mut [u8]) {
    let mut group = [0.0; GROUP];
    group[..values.len()].copy_from_slice(values);
    let (head, tail) = row.split_at_mut(SCALE);
    let scale = match format {
        BaseFormat::Bits8 => {
            let (scale, codes) = even(&group);
            tail.copy_from_slice(&codes);
            scale
        }
        BaseFormat::Bits4 => {
            let (scale, codes) = normal_or_even(&group);
            for (byte, pair) in tail.iter_mut().zip(codes.chunks(2)) {
                *byte = pair[0] | pair[1] << 4;
            }
            scale
        }
    };
    head.copy_from_slice(&scale.to_le_bytes());
}

fn add_group(row: &[u8], format: BaseFormat, scale: f32, values: &mut [f32]) {
    let (head, tail) = row.split_at(SCALE);
    let group_scale = f32::from_le_bytes(head.try_into().expect("a scale has four bytes"));
    match format {
        BaseFormat::Bits8 => {
            for (value, code) in values.iter_mut().zip(tail) {
                *value = *value * scale + f32::from(*code as i8) * group_scale;
            }
        }
        BaseFormat::Bits4 => {
            let levels = LEVELS[usize::from(group_scale.is_sign_negative())];
            let levels = levels.map(|level| level * group_scale.abs());
            for (values, code) in values.chunks_mut(2).zip(tail) {
                let pair = [code & 15, code >> 4];
                for (value, code) in values.iter_mut().zip(pair) {
                    *value = *value * scale + levels[usize::from(code)];
                }
            }
        }
    }
}

/// Returns the scale with which the largest weight of a group is `top` levels from zero. Returns `None` for a group
/// that devices can't distinguish from zero.
fn scale_of_largest(group: &[f32; GROUP], top: f32) -> Option<f32> {
    let largest = group
        .iter()
        .fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let scale = largest / top;
    // The largest numbers must not be rounded beyond the range.
    let scale = match (scale * top).is_finite() {
        true => scale,
        false => scale.next_down(),
    };
    Some(scale).filter(|scale| *scale > SMALLEST)
}

/// Smallest scale: devices may flush subnormal numbers to zero, also when they compute the scale from its bytes.
const SMALLEST: f32 = 1e-30;

/// Quantizes a group in even levels.
fn even(group: &[f32; GROUP]) -> (f32, [u8; GROUP]) {
    let Some(scale) = scale_of_largest(group, 127.0) else {
        return (0.0, [0; GROUP]);
    };
    let code = |value: f32| (value / scale).round().clamp(-127.0, 127.0) as i8 as u8;
    (scale, group.map(code))
}

/// Quantizes a group in the levels with the smaller error; a negative scale means even levels.
fn normal_or_even(group: &[f32; GROUP]) -> (f32, [u8; GROUP]) {
    let Some(largest) = scale_of_largest(group, 1.0) else {
        return (0.0, [nearest(&HALFWAY[0], 0.0); GROUP]);
    };
    let mut best = (f32::INFINITY, 0.0, [0; GROUP]);
    let kinds = LEVELS.iter().zip(&HALFWAY).zip([1.0, -1.0]);
    for ((levels, halfway), sign) in kinds {
        for relative in SCALES {
            let scale = largest * relative;
            let (mut codes, mut sum) = ([0; GROUP], 0.0);
            for (code, value) in codes.iter_mut().zip(group) {
                *code = nearest(halfway, value / scale);
                let error = (value - levels[usize::from(*code)] * scale) / largest;
                sum += error * error;
            }
            if sum < best.0 {
                best = (sum, scale * sign, codes);
            }
        }
    }
    (best.1, best.2)
}

/// Midpoints between neighbouring levels.
const HALFWAY: [[f32; 15]; 2] = [between(&LEVELS[0]), between(&LEVELS[1])];

const fn between(levels: &[f32; 16]) -> [f32; 15] {
    let mut halfway = [0.0; 15];
    let mut code = 0;
    while code < 15 {
        halfway[code] = (levels[code] + levels[code + 1]) / 2.0;
        code += 1;
    }
    halfway
}

/// Returns the index of the level nearest to `value`; `halfway` has the midpoints.
fn nearest(halfway: &[f32; 15], value: f32) -> u8 {
    let mut code = 0;
    for halfway in halfway {
        code += u8::from(value > *halfway);
    }
    code
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dequantized(rows: &[u8], format: BaseFormat, elements: usize) -> Vec<f32> {
        let mut values = vec![0.0; elements];
        add(rows, format, 1.0, &mut values);
        values
    }

    #[test]
    fn largest_finite_weight_stays_finite() {
        for format in [BaseFormat::Bits8, BaseFormat::Bits4] {
            for values in [[f32::MAX, 1.0], [f32::MIN, f32::MAX]] {
                let back = dequantized(&quantized(&values, format), format, 2);
                assert!(
                    back.iter().all(|value| value.is_finite()),
                    "{format:?}: {back:?}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn error_of_weight_is_at_most_half_of_widest_gap(
            values in proptest::collection::vec(-3.0_f32..3.0, 1..200),
            exponent in -60..60,
        ) {
            let values: Vec<f32> = values.iter().map(|value| value * 2_f32.powi(exponent)).collect();
            for (format, gap) in [(BaseFormat::Bits8, 1.0 / 127.0), (BaseFormat::Bits4, 0.303_807_2)] {
                let rows = quantized(&values, format);
                prop_assert_eq!(rows.len(), values.len().div_ceil(GROUP) * format.row());
                let dequantized = dequantized(&rows, format, values.len());
                for (values, dequantized) in values.chunks(GROUP).zip(dequantized.chunks(GROUP)) {
                    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                    let errors = || values.iter().zip(dequantized).map(|(value, dequantized)| (value - dequantized).abs());
                    // A smaller scale is chosen only if it reduces the error of the whole group.
                    let bound = largest * gap * 0.500_01;
                    let sum: f32 = errors().map(|error| error * error).sum();
                    prop_assert!(sum <= bound * bound * values.len() as f32);
                }
            }
        }
    }

    #[test]
    fn dequantized_values_are_quantized_equally() {
        let values: Vec<f32> = (0..640).map(|i| (i as f32 * 0.37).sin() * 0.02).collect();
        for format in [BaseFormat::Bits8, BaseFormat::Bits4] {
            let rows = quantized(&values, format);
            let once = dequantized(&rows, format, values.len());
            let twice = dequantized(&quantized(&once, format), format, values.len());
            for (once, twice) in once.iter().zip(twice) {
                assert!((once - twice).abs() <= 1e-6 * once.abs(), "{once} {twice}");
            }
        }
    }

    #[test]
    fn group_has_levels_with_smaller_error() {
        let even: Vec<f32> = LEVELS[1]
            .repeat(4)
            .iter()
            .map(|level| level * 0.3)
            .collect();
        let normal: Vec<f32> = LEVELS[0]
            .repeat(4)
            .iter()
            .map(|level| level * 0.3)
            .collect();
        for values in [even, normal] {
            let rows = quantized(&values, BaseFormat::Bits4);
            assert_eq!(dequantized(&rows, BaseFormat::Bits4, GROUP), values);
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        for format in [BaseFormat::Bits8, BaseFormat::Bits4] {
            let rows = quantized(&[0.0; 70], format);
            assert_eq!(dequantized(&rows, format, 70), [0.0; 70]);
        }
    }

    #[test]
    fn each_level_has_its_code() {
        for (levels, halfway) in LEVELS.iter().zip(&HALFWAY) {
            for (code, level) in levels.iter().enumerate() {
                assert_eq!(usize::from(nearest(halfway, *level)), code);
            }
        }
    }
}
