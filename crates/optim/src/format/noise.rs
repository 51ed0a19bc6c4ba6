//! Random numbers without a state: hashes of the place where they are used. They are the same on every backend, for
//! every order of the elements, and in stock and fused training.

use super::super::rule::{Loop, vectorized};
use super::square_root_code::{GROUP, Values};

/// The random numbers of one step of a parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noise {
    /// Hash of the step.
    pub(crate) salt: u32,
}

impl Noise {
    /// Creates the random numbers of step `time`.
    pub(crate) fn of_step(time: usize) -> Self {
        // Any multiplier works: close steps then have unrelated numbers.
        Self {
            salt: hash(time as u32 ^ 0x6261_636b),
        }
    }

    /// Returns 32 random bits for the element of this index. Its gradient makes the bits differ between parameters.
    #[inline(always)]
    pub(crate) fn bits(self, index: u32, gradient: f32) -> u32 {
        let place = index.wrapping_mul(0x9e37_79b9) ^ gradient.to_bits();
        hash(place.wrapping_add(self.salt))
    }

    /// Fills `bits` for the elements from `start` on, which have these gradients.
    pub(crate) fn fill(self, start: usize, gradients: &[f32], bits: &mut [u32]) {
        vectorized(Fill(self, start as u32, gradients, bits));
    }

    /// Derives 32 more random bits.
    #[inline(always)]
    pub(crate) fn more(bits: u32) -> u32 {
        hash(bits ^ 0x9e37_79b9)
    }
}

/// The loop over elements, compiled for the instruction set of the processor.
struct Fill<'a>(Noise, u32, &'a [f32], &'a mut [u32]);

impl Loop for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(noise, mut index, gradients, bits) = self;
        for (bits, gradient) in bits.iter_mut().zip(gradients) {
            *bits = noise.bits(index, *gradient);
            index = index.wrapping_add(1);
        }
    }
}

/// Hashes by [`lowbias32`](https://nullprogram.com/blog/2018/07/31/), a bijection that spreads every bit over all.
#[inline(always)]
fn hash(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Converts 16 random bits to a threshold, uniform between 0 and 1, both excluded.
#[inline(always)]
pub(crate) fn threshold(bits: u32) -> f32 {
    // The bits are in the mantissa of a number between 1 and 2, with half of the next bit.
    f32::from_bits(1_f32.to_bits() | 0x40 | (bits & 0xffff) << 7) - 1.0
}

/// Rounding of a number between two codes or floats.
#[derive(Clone, Copy)]
pub(crate) enum Dither<'a> {
    ToTheNearest,
    /// At random, by the bits of each element and the index of the state.
    AtRandom(&'a [u32], usize),
}

impl Dither<'_> {
    /// Returns the thresholds of a group of a state.
    #[inline(always)]
    pub(super) fn thresholds(self, group: usize) -> Values {
        let Self::AtRandom(bits, state) = self else {
            return [0.5; GROUP];
        };
        let bits = group_of(bits, group);
        // A second state has the other half of the random bits.
        let shift = 16 * (state & 1);
        let mut thresholds = [0.0; GROUP];
        for lane in 0..GROUP {
            thresholds[lane] = threshold(bits[lane] >> shift);
        }
        thresholds
    }

    /// Returns the numbers that are added to a group of weights before truncation.
    #[inline(always)]
    pub(super) fn random(self, group: usize) -> [u32; GROUP] {
        // To the nearest: half of the last of 24 bits.
        let mut random = [0x80; GROUP];
        if let Self::AtRandom(bits, _) = self {
            let bits = group_of(bits, group);
            for lane in 0..GROUP {
                random[lane] = Noise::more(bits[lane]);
            }
        }
        random
    }
}

#[inline(always)]
fn group_of(bits: &[u32], group: usize) -> &[u32; GROUP] {
    &bits.as_chunks().0[group]
}
