use super::noise::{Noise, threshold};
use super::root::{GROUP, TO_THE_NEAREST, Values};

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
            return TO_THE_NEAREST;
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
