use burn::tensor::bf16;
use serde::{Deserialize, Serialize};

use super::config_enum::config_enum;
use super::square_root_code::GROUP;

/// Format of bf16 weights, which sets how they keep extra precision.
///
/// Updates are computed in f32 in every format. A weight in f32 has all bits, so the formats are for weights in bf16
/// (`backburn::cast`). Parameters in f32 of fewer than 4096 elements in the same model (norms, biases) are stepped without a
/// format.
///
/// A config without this option has [`Plain`](Self::Plain), as the configs of Burn's optimizers.
///
/// ```
/// use backburn_optim::{AdamWConfig, WeightFormat};
///
/// let optimizer = AdamWConfig::new().with_weight_format(WeightFormat::Split24).init();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub enum WeightFormat {
    /// No extra bits: the weight is rounded to the nearest. Updates below a 256th of the weight are lost.
    Plain,
    /// No extra bits: the weight is rounded up or down at random, so that small updates count on average.
    Stochastic,
    /// 8 more bits, stored with the optimizer state. The last of the 24 is rounded at random.
    Split24,
}

config_enum!(WeightFormat, WeightFormat::Plain);

impl WeightFormat {
    /// Returns the bytes of an element's residual in the optimizer state.
    pub(crate) fn residual_bytes(self) -> usize {
        usize::from(self == Self::Split24)
    }
}

/// Rounds `value` to the nearest.
#[inline(always)]
pub(crate) fn nearest(value: f32) -> bf16 {
    let bits = value.to_bits();
    let even = (bits >> 16) & 1;
    let rounded = (bits.wrapping_add(0x7fff + even) >> 16) as u16;
    bf16::from_bits(if value.is_nan() { nan(bits) } else { rounded })
}

/// Rounds `value` up or down at random, with probabilities in proportion to the distances.
#[inline(always)]
pub(crate) fn stochastic(value: f32, random: u32) -> bf16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(random & 0xffff) >> 16) as u16;
    let kept = (bits >> 16) as u16;
    let rounded = if value.is_infinite() { kept } else { rounded };
    bf16::from_bits(if value.is_nan() { nan(bits) } else { rounded })
}

/// Rounds `value` at random to 24 bits. Returns the nearest bf16 and the residual.
///
/// No result lies halfway between two numbers of bf16, so that a cast of the joined number rounds to the same bf16.
#[inline(always)]
pub(crate) fn split24(value: f32, random: u32) -> (bf16, i8) {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(random & 0xff) >> 8;
    let rounded = if value.is_finite() {
        rounded
    } else {
        bits >> 8
    };
    let neighbor = rounded.wrapping_add(random >> 7 & 2).wrapping_sub(1);
    let rounded = if rounded & 0xff == 0x80 {
        neighbor
    } else {
        rounded
    };
    let high = (rounded + 0x80) >> 8;
    let low = rounded.wrapping_sub(high << 8) as i8;
    match value.is_nan() {
        true => (bf16::from_bits(nan(bits)), 0),
        false => (bf16::from_bits(high as u16), low),
    }
}

/// Joins the parts of [`split24`].
#[inline(always)]
pub(crate) fn join24(high: bf16, low: i8) -> f32 {
    let bits = u32::from(high.to_bits()) << 8;
    f32::from_bits(bits.wrapping_add(i32::from(low) as u32) << 8)
}

/// Returns the bits of a bf16 NaN for the bits of an f32 NaN.
#[inline(always)]
fn nan(bits: u32) -> u16 {
    (bits >> 16) as u16 | 0x40
}

/// Computes the checksum of the weights of a group.
#[inline(always)]
pub(crate) fn checksum(weights: &[bf16; GROUP]) -> u32 {
    let mut sum = 0_u32;
    for lane in 0..GROUP {
        let bits = u32::from(weights[lane].to_bits());
        sum = sum.wrapping_add(bits.wrapping_mul(FACTORS[lane]));
    }
    sum
}

/// Factor of each weight of a group in the checksum. With consecutive factors, small changes could cancel.
const FACTORS: [u32; GROUP] = {
    let mut factors = [0x9e37_79b9_u32; GROUP];
    let mut lane = 1;
    while lane < GROUP {
        factors[lane] = factors[lane - 1].wrapping_mul(0x2c1b_3c6d);
        lane += 1;
    }
    factors
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates any f32.
    fn number() -> impl Strategy<Value = f32> {
        any::<u32>().prop_map(f32::from_bits)
    }

    proptest! {
        #[test]
        fn split24_of_any_value_is_adjacent_number(value in number(), random in any::<u32>()) {
            let (high, low) = split24(value, random);
            let joined = join24(high, low);
            if value.is_nan() {
                prop_assert!(joined.is_nan() && high.is_nan());
            } else if value.is_infinite() {
                prop_assert_eq!(joined, value);
            } else {
                let below = value.to_bits() & !0xff;
                let above = if value.to_bits() == below { below } else { below + 0x100 };
                let neighbor = |bits: u32| match bits & 0xffff == 0x8000 {
                    true => [bits - 0x100, bits + 0x100],
                    false => [bits; 2],
                };
                let mut allowed = [below, above].into_iter().flat_map(neighbor);
                prop_assert!(allowed.any(|it| it == joined.to_bits()), "{value:e} {joined:e}");
                // A joined value splits into the same parts, and a cast rounds it to the same bf16.
                prop_assert_eq!(split24(joined, random), (high, low));
                prop_assert_eq!(bf16::from_f32(joined).to_bits(), high.to_bits());
            }
        }

        #[test]
        fn rounding_to_bf16_keeps_non_finite_values(value in number(), random in any::<u32>()) {
            for rounded in [nearest(value), stochastic(value, random)] {
                if value.is_nan() {
                    prop_assert!(rounded.is_nan());
                } else if value.is_infinite() {
                    prop_assert_eq!(rounded.to_f32(), value);
                } else {
                    let below = value.to_bits() >> 16;
                    let either = [below as u16, below as u16 + 1];
                    prop_assert!(either.contains(&rounded.to_bits()));
                }
            }
            if !value.is_nan() {
                prop_assert_eq!(nearest(value).to_bits(), bf16::from_f32(value).to_bits());
            }
        }
    }

    #[test]
    fn stochastic_rounding_is_unbiased() {
        let value = 1.001_f32;
        let random = (0..65_536).map(|random| f64::from(stochastic(value, random).to_f32()));
        let mean = random.sum::<f64>() / 65_536.0;
        assert!((mean - f64::from(value)).abs() < 1e-9, "{mean}");
        // The second one is halfway between two numbers of bf16.
        for value in [value, 257.0 / 256.0] {
            let random = (0..512).map(|random| {
                let (high, low) = split24(value, random);
                f64::from(join24(high, low))
            });
            let mean = random.sum::<f64>() / 512.0;
            assert!((mean - f64::from(value)).abs() < 1e-9, "{mean}");
        }
    }

    #[test]
    fn checksum_differs_after_change_of_weight() {
        let weights: [bf16; GROUP] = std::array::from_fn(|i| bf16::from_f32((i + 1) as f32 / 7.0));
        for index in 0..64 {
            let mut changed = weights;
            changed[index] = bf16::from_f32(changed[index].to_f32() + 0.5);
            assert_ne!(checksum(&changed), checksum(&weights), "{index}");
        }
        // Many small changes, as between checkpoints of close steps.
        let mut seed = 1_u32;
        for _ in 0..20_000 {
            let nudged = weights.map(|weight| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                bf16::from_bits(weight.to_bits() + 1 - ((seed >> 24) & 2) as u16)
            });
            assert_ne!(checksum(&nudged), checksum(&weights));
        }
        let mut swapped = weights;
        swapped.swap(3, 4);
        assert_ne!(checksum(&swapped), checksum(&weights));
    }
}
