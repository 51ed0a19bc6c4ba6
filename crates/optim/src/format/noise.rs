//! Random numbers without a state: a hash of where and when they are needed. So they are the same on every backend,
//! in whatever order elements are computed, in stock and in fused training.

use super::super::vectorized::{Loop, vectorized};
use super::root::{GROUP, Values};

/// The random numbers of one step of a parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noise {
    /// What tells the step from others.
    pub(crate) salt: u32,
}

impl Noise {
    /// `time` is the number of the step.
    pub(crate) fn of_step(time: usize) -> Self {
        // Any number will do; steps close to each other have nothing in common then.
        Self {
            salt: hash(time as u32 ^ 0x6261_636b),
        }
    }

    /// 32 random bits for the element of this index, whose gradient tells parameters from one another.
    #[inline(always)]
    pub(crate) fn bits(self, index: u32, gradient: f32) -> u32 {
        let place = index.wrapping_mul(0x9e37_79b9) ^ gradient.to_bits();
        hash(place.wrapping_add(self.salt))
    }

    /// Those of the elements from the `start`-th on, which have these gradients.
    pub(crate) fn fill(self, start: usize, gradients: &[f32], bits: &mut [u32]) {
        vectorized(Fill(self, start as u32, gradients, bits));
    }

    /// 32 more, from those before.
    #[inline(always)]
    pub(crate) fn more(bits: u32) -> u32 {
        hash(bits ^ 0x9e37_79b9)
    }
}

/// The loop over elements, compiled for what the processor can do.
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

/// [`lowbias32`](https://nullprogram.com/blog/2018/07/31/), a bijection that spreads every bit over all.
#[inline(always)]
fn hash(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Sixteen random bits as a threshold: evenly between 0 and 1, and neither.
#[inline(always)]
pub(crate) fn threshold(bits: u32) -> f32 {
    // They are in the mantissa of a number between 1 and 2, with half of the next bit.
    f32::from_bits(1_f32.to_bits() | 0x40 | (bits & 0xffff) << 7) - 1.0
}

/// How a number between two is rounded.
#[derive(Clone, Copy)]
pub(crate) enum Dither<'a> {
    ToTheNearest,
    /// By the random bits of each element, those of the state of this index.
    AtRandom(&'a [u32], usize),
}

impl Dither<'_> {
    /// The thresholds of a group of a state.
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

    /// What is added to a group of weights before they are cut off.
    #[inline(always)]
    pub(super) fn random(self, group: usize) -> [u32; GROUP] {
        // Half of the last of 24 bits, if to the nearest.
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
