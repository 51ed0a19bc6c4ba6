//! Codes of a few bits for the square roots of numbers, relative to the largest of their group: the root spreads the
//! codes over many orders of magnitude.
//!
//! With the largest magnitude `S` of a group as its scale, a number `x` lies between two roots,
//!
//! ```text
//! r^2 <= L^2 |x| / S < (r + 1)^2     signed    q = sign(x) r   back: q |q| / L^2 S      L = 127 in 8 bits, 7 in 4
//!                                    positive  q = r - 1       back: (q + 1)^2 / L^2 S  L = 256 in 8 bits, 16 in 4
//! ```
//!
//! and is rounded up where its part of the way, `(L^2 |x| / S - r^2) / (2 r + 1)`, is more than a threshold between 0 and
//! 1. With one drawn at random it is right on average: it is the numbers that add up from step to step, not their roots.
//!
//! (Fair in the root, momentum in 4 bits moved elements of a hundredth of their group's largest 1.75 times as far as in
//! f32.) With one half, a number that was decoded gets its code again, and its group the scale.
//!
//! There is no positive code for zero: what is divided by the root of a second moment stays finite. A group with a
//! number that is not finite is NaN as a whole, so nothing is hidden.

// Plain loops: closures are compiled for any processor, and these run in the inner loop of a kernel.

/// Elements that share a scale.
pub(crate) const GROUP: usize = 64;

/// The numbers of a group; what a last one lacks is zero.
pub(crate) type Values = [f32; GROUP];

/// What is known of the sign of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Root {
    /// A first moment.
    Signed,
    /// A second moment, which is not negative.
    Positive,
}

/// Bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Width {
    Four,
    Eight,
}

impl Width {
    pub(crate) const fn bits(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Bytes of the codes of a group.
    pub(crate) const fn group_bytes(self) -> usize {
        match self {
            Self::Four => GROUP / 2,
            Self::Eight => GROUP,
        }
    }
}

/// What codes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Coding {
    pub(crate) root: Root,
    pub(crate) width: Width,
}

impl Coding {
    /// `L` of the formulas.
    #[cfg(feature = "cubecl")]
    pub(crate) const fn levels(self) -> i32 {
        match (self.root, self.width) {
            (Root::Signed, Width::Eight) => 127,
            (Root::Signed, Width::Four) => 7,
            (Root::Positive, Width::Eight) => 256,
            (Root::Positive, Width::Four) => 16,
        }
    }

    /// The numbers that `codes` stand for.
    #[inline(always)]
    pub(crate) fn decode(self, codes: &[u8], scale: f32) -> Values {
        match (self.root, self.width) {
            (Root::Signed, Width::Eight) => decoded::<127>(signed_bytes(codes), scale),
            (Root::Signed, Width::Four) => decoded::<7>(signed_nibbles(codes), scale),
            (Root::Positive, Width::Eight) => {
                above_zero(decoded::<256>(positive_bytes(codes), scale), scale)
            }
            (Root::Positive, Width::Four) => {
                above_zero(decoded::<16>(positive_nibbles(codes), scale), scale)
            }
        }
    }

    /// Writes the codes of `values`, rounded by these thresholds, and returns their scale.
    #[inline(always)]
    pub(crate) fn encode(self, values: &Values, thresholds: &Values, codes: &mut [u8]) -> f32 {
        let Self { root, width } = self;
        let scale = scale(values);
        let roots = match (root, width) {
            (Root::Signed, Width::Eight) => signed(values, roots::<127>(values, thresholds, scale)),
            (Root::Signed, Width::Four) => signed(values, roots::<7>(values, thresholds, scale)),
            (Root::Positive, Width::Eight) => positive(roots::<256>(values, thresholds, scale)),
            (Root::Positive, Width::Four) => positive(roots::<16>(values, thresholds, scale)),
        };
        write(width, codes, roots);
        scale
    }
}

/// The threshold of what is rounded to the nearest.
pub(crate) const TO_THE_NEAREST: Values = [0.5; GROUP];

/// The largest magnitude: NaN if one is not finite.
#[inline(always)]
fn scale(values: &Values) -> f32 {
    // Magnitudes are ordered as their bits are, with those that are not finite above all.
    let mut largest = 0;
    for value in values {
        largest = i32::max(largest, (value.to_bits() & 0x7fff_ffff) as i32);
    }
    let largest = f32::from_bits(largest as u32);
    if largest.is_finite() {
        largest
    } else {
        f32::NAN
    }
}

/// A power of two that takes numbers of this scale to where `1 / scale` is a normal number.
#[inline(always)]
fn part(scale: f32) -> f32 {
    if scale >= HUGE {
        0.25
    } else if scale < TINY {
        1.0 / TINY
    } else {
        1.0
    }
}

/// Its inverse is normal, and no larger scale's is for sure.
const HUGE: f32 = f32::from_bits(0x7e00_0000); // 2^125
const TINY: f32 = f32::from_bits(0x2000_0000); // 2^-63

/// What signed roots, on the scale of the codes, stand for.
#[inline(always)]
fn decoded<const LEVELS: i32>(roots: [i32; GROUP], scale: f32) -> Values {
    // The square of the largest root times this is one, exactly.
    let part = 1.0 / (LEVELS * LEVELS) as f32;
    let mut values = [0.0; GROUP];
    for lane in 0..GROUP {
        let root = roots[lane] as f32;
        values[lane] = root * root.abs() * part * scale;
    }
    values
}

/// The least number there is in the place of zeros, which what is far below its scale is rounded to; all of a group may
/// be zero.
#[inline(always)]
fn above_zero(mut values: Values, scale: f32) -> Values {
    let least = f32::from_bits(u32::from(scale > 0.0));
    for value in &mut values {
        // What is not a number stays that.
        *value = if *value < least { least } else { *value };
    }
    values
}

/// The roots of magnitudes, on the scale of the codes.
#[inline(always)]
fn roots<const LEVELS: i32>(values: &Values, thresholds: &Values, scale: f32) -> [i32; GROUP] {
    let part = part(scale);
    // Of zeros and NaN there is none; their roots are 0.
    let (inverse, mut roots) = (1.0 / (scale * part), [0; GROUP]);
    for lane in 0..GROUP {
        let square = values[lane].abs() * part * inverse * (LEVELS * LEVELS) as f32;
        // Towards zero it rounds in one instruction.
        let root = square.sqrt() as i32;
        let below = root as f32;
        let up = square - below * below > thresholds[lane] * (2.0 * below + 1.0);
        roots[lane] = (root + i32::from(up)).min(LEVELS);
    }
    roots
}

#[inline(always)]
fn signed(values: &Values, mut roots: [i32; GROUP]) -> [i32; GROUP] {
    for lane in 0..GROUP {
        let root = roots[lane];
        roots[lane] = if values[lane] < 0.0 { -root } else { root };
    }
    roots
}

#[inline(always)]
fn positive(mut roots: [i32; GROUP]) -> [i32; GROUP] {
    for root in &mut roots {
        *root = (*root).max(1) - 1;
    }
    roots
}

#[inline(always)]
fn signed_bytes(codes: &[u8]) -> [i32; GROUP] {
    let mut roots = [0; GROUP];
    for lane in 0..GROUP {
        roots[lane] = i32::from(codes[lane] as i8);
    }
    roots
}

#[inline(always)]
fn positive_bytes(codes: &[u8]) -> [i32; GROUP] {
    let mut roots = [0; GROUP];
    for lane in 0..GROUP {
        roots[lane] = i32::from(codes[lane]) + 1;
    }
    roots
}

#[inline(always)]
fn signed_nibbles(codes: &[u8]) -> [i32; GROUP] {
    let mut roots = [0; GROUP];
    for (lane, root) in roots.iter_mut().enumerate() {
        *root = (i32::from(nibble(codes, lane)) << 28) >> 28;
    }
    roots
}

#[inline(always)]
fn positive_nibbles(codes: &[u8]) -> [i32; GROUP] {
    let mut roots = [0; GROUP];
    for (lane, root) in roots.iter_mut().enumerate() {
        *root = i32::from(nibble(codes, lane)) + 1;
    }
    roots
}

/// The first half of a group is in the lower halves of its bytes.
#[inline(always)]
fn nibble(codes: &[u8], lane: usize) -> u8 {
    match lane < GROUP / 2 {
        true => codes[lane] & 0xf,
        false => codes[lane - GROUP / 2] >> 4,
    }
}

#[inline(always)]
fn write(width: Width, codes: &mut [u8], values: [i32; GROUP]) {
    match width {
        Width::Eight => {
            for lane in 0..GROUP {
                codes[lane] = values[lane] as u8;
            }
        }
        Width::Four => {
            for lane in 0..GROUP / 2 {
                let [low, high] = [values[lane], values[lane + GROUP / 2]];
                codes[lane] = (low & 0xf | (high & 0xf) << 4) as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CODINGS: [(Coding, f64); 4] = [
        (coding(Root::Signed, Width::Eight), 127.0),
        (coding(Root::Signed, Width::Four), 7.0),
        (coding(Root::Positive, Width::Eight), 256.0),
        (coding(Root::Positive, Width::Four), 16.0),
    ];

    const fn coding(root: Root, width: Width) -> Coding {
        Coding { root, width }
    }

    /// A group of any numbers that this coding is for: of either sign or none, near to each other or not.
    fn group(coding: Coding) -> impl Strategy<Value = Values> {
        let number = (-30..30_i32, -1.0..1.0_f32, prop::bool::weighted(0.2));
        let numbers = prop::collection::vec(number, GROUP);
        (numbers, 0..3_i32).prop_map(move |(numbers, spread)| {
            let mut values = [0.0; GROUP];
            for (value, (exponent, mantissa, is_zero)) in values.iter_mut().zip(numbers) {
                let number = mantissa * 10_f32.powi(exponent * spread / 2);
                *value = match coding.root {
                    _ if is_zero => 0.0,
                    Root::Signed => number,
                    Root::Positive => number.abs(),
                };
            }
            values
        })
    }

    /// The codes of a group, as numbers.
    fn codes(coding: Coding, bytes: &[u8]) -> Vec<i32> {
        let code = |lane| match (coding.root, coding.width) {
            (Root::Signed, Width::Eight) => i32::from(bytes[lane] as i8),
            (Root::Positive, Width::Eight) => i32::from(bytes[lane]),
            (root, Width::Four) => {
                let both = bytes[lane % 32];
                let code = i32::from(if lane < 32 { both & 15 } else { both >> 4 });
                if root == Root::Signed && code > 7 {
                    code - 16
                } else {
                    code
                }
            }
        };
        (0..GROUP).map(code).collect()
    }

    /// What a code stands for, by the formula.
    fn formula(coding: Coding, levels: f64, code: i32, scale: f32) -> f64 {
        let code = f64::from(code);
        let root = match coding.root {
            Root::Signed => code,
            Root::Positive => code + 1.0,
        };
        root * root.abs() / (levels * levels) * f64::from(scale)
    }

    proptest! {
        #[test]
        fn codes_are_those_of_the_formula_in_f64(
            (index, values, threshold) in (0..4_usize).prop_flat_map(|index| {
                (Just(index), group(CODINGS[index].0), 0.01..0.99_f32)
            }),
        ) {
            let (coding, levels) = CODINGS[index];
            let mut bytes = vec![0; coding.width.group_bytes()];
            let scale = coding.encode(&values, &[threshold; GROUP], &mut bytes);
            prop_assert_eq!(scale, values.iter().fold(0.0, |most, x| f32::max(most, x.abs())));
            let decoded = coding.decode(&bytes, scale);
            for (lane, code) in codes(coding, &bytes).into_iter().enumerate() {
                let x = f64::from(values[lane]);
                let stands_for = formula(coding, levels, code, scale);
                let error = (f64::from(decoded[lane]) - stands_for).abs();
                prop_assert!(error <= 1e-6 * stands_for.abs() + 1e-38);
                if scale == 0.0 {
                    prop_assert_eq!(code, 0);
                    continue;
                }
                let square = levels * levels * x.abs() / f64::from(scale);
                let found = match coding.root {
                    Root::Signed if x < 0.0 => f64::from(-code),
                    Root::Signed => f64::from(code),
                    Root::Positive => f64::from(code) + 1.0,
                };
                // Up to rounding errors, the root below or the one above, as the way and the threshold say.
                let below = square.sqrt().floor();
                let way = (square - below * below) / (2.0 * below + 1.0);
                let rounded = below + f64::from(u8::from(way > f64::from(threshold)));
                let is_near = (way - f64::from(threshold)).abs() < 1e-3 || !(1e-3..0.999).contains(&way);
                let allowed = if is_near { 1.0 } else { 0.0 };
                let least = if coding.root == Root::Signed { 0.0 } else { 1.0 };
                let expected = rounded.clamp(least, levels);
                prop_assert!((found - expected).abs() <= allowed, "{found} for {square}, {threshold}");
            }
        }

        #[test]
        fn what_was_decoded_gets_its_codes_again(
            index in 0..4_usize,
            codes in prop::collection::vec(any::<u8>(), GROUP),
            scale in (-20..30_i32, 1.0..10.0_f32),
        ) {
            let (coding, _) = CODINGS[index];
            let scale = scale.1 * 10_f32.powi(scale.0);
            let mut before = codes[..coding.width.group_bytes()].to_vec();
            // The largest of the group has the largest code, and no code is below its least.
            match (coding.root, coding.width) {
                (Root::Signed, Width::Eight) => {
                    before[7] = 127;
                    before.iter_mut().filter(|code| **code == 128).for_each(|code| *code = 0);
                }
                (Root::Signed, Width::Four) => {
                    before.iter_mut().filter(|both| **both & 15 == 8).for_each(|both| *both &= 240);
                    before.iter_mut().filter(|both| **both >> 4 == 8).for_each(|both| *both &= 15);
                    before[7] = 7;
                }
                (Root::Positive, _) => before[7] = 255,
            }
            let values = coding.decode(&before, scale);
            let mut after = vec![0; before.len()];
            let scale_after = coding.encode(&values, &TO_THE_NEAREST, &mut after);
            prop_assert_eq!(scale_after, scale);
            prop_assert_eq!(after, before);
        }
    }

    #[test]
    fn a_group_with_a_number_that_is_not_finite_hides_nothing() {
        for (coding, _) in CODINGS {
            for wrong in [f32::NAN, f32::INFINITY, -f32::INFINITY] {
                let mut values = [1.0; GROUP];
                values[40] = wrong;
                let mut bytes = vec![0; coding.width.group_bytes()];
                let scale = coding.encode(&values, &TO_THE_NEAREST, &mut bytes);
                let decoded = coding.decode(&bytes, scale);
                assert!(decoded.iter().all(|value| value.is_nan()), "{coding:?}");
            }
        }
    }

    #[test]
    fn zeros_stay_zeros_and_small_second_moments_do_not_become_any() {
        for (coding, _) in CODINGS {
            let mut bytes = vec![0; coding.width.group_bytes()];
            let scale = coding.encode(&[0.0; GROUP], &[0.01; GROUP], &mut bytes);
            assert_eq!(coding.decode(&bytes, scale), [0.0; GROUP]);
            let mut values = [0.0; GROUP];
            values[3] = 1e-8;
            let scale = coding.encode(&values, &[0.99; GROUP], &mut bytes);
            let decoded = coding.decode(&bytes, scale);
            assert_eq!(decoded[3], 1e-8);
            assert_eq!(decoded[4] > 0.0, coding.root == Root::Positive);
        }
    }

    /// Evenly spread thresholds stand for random ones.
    #[test]
    fn a_number_between_two_codes_is_right_on_average() {
        const DRAWS: usize = 1 << 12;
        for (coding, _) in CODINGS {
            let mut values = [0.0; GROUP];
            for (lane, value) in values.iter_mut().enumerate() {
                // Over four orders of magnitude, the smallest signed ones far below the first code.
                *value =
                    10_f32.powf(-(lane as f32) / 16.0) * if lane % 2 == 0 { 3.0 } else { -3.0 };
                if coding.root == Root::Positive {
                    *value = value.abs();
                }
            }
            let mut sums = [0.0_f64; GROUP];
            for draw in 0..DRAWS {
                let threshold = (draw as f32 + 0.5) / DRAWS as f32;
                let mut bytes = vec![0; coding.width.group_bytes()];
                let scale = coding.encode(&values, &[threshold; GROUP], &mut bytes);
                for (sum, value) in sums.iter_mut().zip(coding.decode(&bytes, scale)) {
                    *sum += f64::from(value);
                }
            }
            let least = match (coding.root, coding.width) {
                (Root::Signed, _) => 0.0,
                (Root::Positive, Width::Eight) => 3.0 / 65536.0,
                (Root::Positive, Width::Four) => 3.0 / 256.0,
            };
            for (value, sum) in values.into_iter().zip(sums) {
                let (mean, value) = (sum / DRAWS as f64, f64::from(value));
                let expected = if value.abs() < least { least } else { value };
                assert!(
                    (mean - expected).abs() < 2e-5 + 1e-3 * expected.abs(),
                    "{coding:?}: {mean} for {value}"
                );
            }
        }
    }

    #[test]
    fn groups_below_the_least_normal_number_are_no_zeros() {
        for (coding, levels) in CODINGS {
            for exponent in [-126, -127, -135, -149] {
                let scale = f64::from(2.0_f32).powi(exponent) as f32;
                let mut values = [0.0; GROUP];
                values[5] = scale;
                values[6] = scale / 4.0;
                let mut bytes = vec![0; coding.width.group_bytes()];
                assert_eq!(coding.encode(&values, &TO_THE_NEAREST, &mut bytes), scale);
                let decoded = coding.decode(&bytes, scale);
                assert_eq!(decoded[5], scale, "{coding:?}");
                let error = (decoded[6] - values[6]).abs();
                assert!(
                    error <= scale / levels as f32 + f32::from_bits(1),
                    "{coding:?}"
                );
                assert_eq!(
                    decoded[7] > 0.0,
                    coding.root == Root::Positive,
                    "{coding:?}"
                );
                // Decoded and encoded again it is the same, as in a record.
                let again = coding.encode(&decoded, &TO_THE_NEAREST, &mut bytes);
                assert_eq!(
                    (coding.decode(&bytes, again), again),
                    (decoded, scale),
                    "{coding:?}"
                );
            }
        }
    }
}
