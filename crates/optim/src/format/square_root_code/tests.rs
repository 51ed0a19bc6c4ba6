use proptest::prelude::*;

use super::super::noise::threshold;
use super::*;

const CODINGS: [(CodeScheme, f64); 4] = [
    (scheme(SquareRootCode::Signed, Width::Eight), 127.0),
    (scheme(SquareRootCode::Signed, Width::Four), 7.0),
    (scheme(SquareRootCode::Positive, Width::Eight), 256.0),
    (scheme(SquareRootCode::Positive, Width::Four), 16.0),
];

const fn scheme(root: SquareRootCode, width: Width) -> CodeScheme {
    CodeScheme { root, width }
}

/// Encodes `values`, rounded by one threshold. Returns their codes and scale.
fn encoded(scheme: CodeScheme, values: &Values, threshold: f32) -> (Vec<u8>, f32) {
    let mut bytes = vec![0; scheme.width.group_bytes()];
    let scale = Scale::of(values);
    scheme.encode_in(scale, values, &[threshold; GROUP], &mut bytes);
    (bytes, scale.largest)
}

/// Generates a group of numbers for this scheme: of either sign or none, near to each other or not.
fn group(scheme: CodeScheme) -> impl Strategy<Value = Values> {
    let number = (-30..30_i32, -1.0..1.0_f32, prop::bool::weighted(0.2));
    let numbers = prop::collection::vec(number, GROUP);
    (numbers, 0..3_i32).prop_map(move |(numbers, spread)| {
        let mut values = [0.0; GROUP];
        for (value, (exponent, mantissa, is_zero)) in values.iter_mut().zip(numbers) {
            let number = mantissa * 10_f32.powi(exponent * spread / 2);
            *value = match scheme.root {
                _ if is_zero => 0.0,
                SquareRootCode::Signed => number,
                SquareRootCode::Positive => number.abs(),
            };
        }
        values
    })
}

/// Returns the codes of a group as numbers.
fn codes(scheme: CodeScheme, bytes: &[u8]) -> Vec<i32> {
    let unused = match scheme.root {
        SquareRootCode::Signed => 32 - scheme.width.bits(),
        SquareRootCode::Positive => 0,
    };
    let bits = scheme.width.unpacked(bytes).map(i32::from);
    bits.map(|code| code << unused >> unused).to_vec()
}

/// Decodes a code by the formula.
fn formula(scheme: CodeScheme, levels: f64, code: i32, scale: f32) -> f64 {
    let code = f64::from(code);
    let root = match scheme.root {
        SquareRootCode::Signed => code,
        SquareRootCode::Positive => code + 1.0,
    };
    root * root.abs() / (levels * levels) * f64::from(scale)
}

proptest! {
    #[test]
    fn codes_match_formula_in_f64(
        (index, values, threshold) in (0..4_usize).prop_flat_map(|index| {
            (Just(index), group(CODINGS[index].0), 0.01..0.99_f32)
        }),
    ) {
        let (scheme, levels) = CODINGS[index];
        let (bytes, scale) = encoded(scheme, &values, threshold);
        prop_assert_eq!(scale, values.iter().fold(0.0, |most, x| f32::max(most, x.abs())));
        let decoded = scheme.decode(&bytes, scale);
        // Rounded to the nearest, a decoded group gets the same codes and scale.
        prop_assert_eq!(encoded(scheme, &decoded, 0.5), (bytes.clone(), scale));
        for (lane, code) in codes(scheme, &bytes).into_iter().enumerate() {
            let x = f64::from(values[lane]);
            let stands_for = formula(scheme, levels, code, scale);
            let error = (f64::from(decoded[lane]) - stands_for).abs();
            prop_assert!(error <= 1e-6 * stands_for.abs() + 1e-38);
            if scale == 0.0 {
                prop_assert_eq!(code, 0);
                continue;
            }
            let square = levels * levels * x.abs() / f64::from(scale);
            let found = match scheme.root {
                SquareRootCode::Signed if x < 0.0 => f64::from(-code),
                SquareRootCode::Signed => f64::from(code),
                SquareRootCode::Positive => f64::from(code) + 1.0,
            };
            // Up to rounding errors, the root below or the one above, as the fraction and the threshold say.
            let below = square.sqrt().floor();
            let way = (square - below * below) / (2.0 * below + 1.0);
            let rounded = below + f64::from(u8::from(way > f64::from(threshold)));
            let is_near = (way - f64::from(threshold)).abs() < 1e-3 || !(1e-3..0.999).contains(&way);
            let allowed = if is_near { 1.0 } else { 0.0 };
            let least = if scheme.root == SquareRootCode::Signed { 0.0 } else { 1.0 };
            let expected = rounded.clamp(least, levels);
            prop_assert!((found - expected).abs() <= allowed, "{found} for {square}, {threshold}");
        }
    }
}

#[test]
fn largest_of_group_has_largest_code_at_any_threshold() {
    for (scheme, levels) in CODINGS {
        for bits in (1.0_f32.to_bits()..2.0_f32.to_bits()).step_by(1021) {
            let mut values = [0.0; GROUP];
            values[5] = f32::from_bits(bits);
            for random in [0, 0xffff] {
                let (bytes, _) = encoded(scheme, &values, threshold(random));
                let root =
                    codes(scheme, &bytes)[5] + i32::from(scheme.root == SquareRootCode::Positive);
                assert_eq!(f64::from(root), levels, "{scheme:?}, {}", values[5]);
            }
        }
    }
}

#[test]
fn group_with_non_finite_number_decodes_to_nan() {
    for (scheme, _) in CODINGS {
        for wrong in [f32::NAN, f32::INFINITY, -f32::INFINITY] {
            let mut values = [1.0; GROUP];
            values[40] = wrong;
            let (bytes, scale) = encoded(scheme, &values, 0.5);
            let decoded = scheme.decode(&bytes, scale);
            assert!(decoded.iter().all(|value| value.is_nan()), "{scheme:?}");
        }
    }
}

#[test]
fn zeros_stay_zero_and_small_second_moments_stay_positive() {
    for (scheme, _) in CODINGS {
        let (bytes, scale) = encoded(scheme, &[0.0; GROUP], 0.01);
        assert_eq!(scheme.decode(&bytes, scale), [0.0; GROUP]);
        let mut values = [0.0; GROUP];
        values[3] = 1e-8;
        let (bytes, scale) = encoded(scheme, &values, 0.99);
        let decoded = scheme.decode(&bytes, scale);
        assert_eq!(decoded[3], 1e-8);
        assert_eq!(decoded[4] > 0.0, scheme.root == SquareRootCode::Positive);
    }
}

/// Evenly spread thresholds stand for random ones.
#[test]
fn rounding_between_codes_is_unbiased() {
    const DRAWS: usize = 1 << 12;
    for (scheme, _) in CODINGS {
        let mut values = [0.0; GROUP];
        for (lane, value) in values.iter_mut().enumerate() {
            // Over four orders of magnitude, the smallest signed ones far below the first code.
            *value = 10_f32.powf(-(lane as f32) / 16.0) * if lane % 2 == 0 { 3.0 } else { -3.0 };
            if scheme.root == SquareRootCode::Positive {
                *value = value.abs();
            }
        }
        let mut sums = [0.0_f64; GROUP];
        for draw in 0..DRAWS {
            let threshold = (draw as f32 + 0.5) / DRAWS as f32;
            let (bytes, scale) = encoded(scheme, &values, threshold);
            for (sum, value) in sums.iter_mut().zip(scheme.decode(&bytes, scale)) {
                *sum += f64::from(value);
            }
        }
        let least = match (scheme.root, scheme.width) {
            (SquareRootCode::Signed, _) => 0.0,
            (SquareRootCode::Positive, Width::Eight) => 3.0 / 65536.0,
            (SquareRootCode::Positive, Width::Four) => 3.0 / 256.0,
        };
        for (value, sum) in values.into_iter().zip(sums) {
            let (mean, value) = (sum / DRAWS as f64, f64::from(value));
            let expected = if value.abs() < least { least } else { value };
            assert!(
                (mean - expected).abs() < 2e-5 + 1e-3 * expected.abs(),
                "{scheme:?}: {mean} for {value}"
            );
        }
    }
}

#[test]
fn subnormal_groups_do_not_decode_to_zero() {
    for (scheme, levels) in CODINGS {
        for exponent in [-126, -127, -135, -149] {
            let scale = f64::from(2.0_f32).powi(exponent) as f32;
            let mut values = [0.0; GROUP];
            values[5] = scale;
            values[6] = scale / 4.0;
            let (bytes, largest) = encoded(scheme, &values, 0.5);
            assert_eq!(largest, scale);
            let decoded = scheme.decode(&bytes, scale);
            assert_eq!(decoded[5], scale, "{scheme:?}");
            let error = (decoded[6] - values[6]).abs();
            assert!(
                error <= scale / levels as f32 + f32::from_bits(1),
                "{scheme:?}"
            );
            assert_eq!(
                decoded[7] > 0.0,
                scheme.root == SquareRootCode::Positive,
                "{scheme:?}"
            );
            // Decoding and encoding again returns the same codes, as in a record.
            let (bytes, again) = encoded(scheme, &decoded, 0.5);
            assert_eq!(
                (scheme.decode(&bytes, again), again),
                (decoded, scale),
                "{scheme:?}"
            );
        }
    }
}
