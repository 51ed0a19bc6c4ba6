//! Codes of a few bits for the square roots of numbers, relative to the largest of their group. The root spreads the codes over
//! many orders of magnitude.
//!
//! With the largest magnitude `S` of a group as its scale, a number `x` lies between two roots,
//!
//! ```text
//! r^2 <= L^2 |x| / S < (r + 1)^2     signed    q = sign(x) r   back: q |q| / L^2 S      L = 127 in 8 bits, 7 in 4
//!                                    positive  q = r - 1       back: (q + 1)^2 / L^2 S  L = 256 in 8 bits, 16 in 4
//! ```
//!
//! and is rounded up if its fraction, `(L^2 |x| / S - r^2) / (2 r + 1)`, is above a threshold between 0 and 1. With a random
//! threshold it is correct on average: the numbers add up from step to step, not their roots.
//!
//! Unbiased rounding of the root instead moved elements of a hundredth of their group's largest 1.75 times as far as in f32,
//! for momentum in 4 bits. With threshold 0.5, a decoded number gets the same code again, and its group the same scale.
//!
//! A positive code can't represent zero, so a division by the root of a second moment stays finite. A group with a number that is
//! not finite is NaN as a whole, so nothing is hidden.

// Plain loops: a closure is compiled for the baseline processor, and these run in the inner loop of a kernel.

/// Number of elements that share a scale.
pub(crate) const GROUP: usize = 64;

/// The numbers of a group; the last group is padded with zeros.
pub(crate) type Values = [f32; GROUP];

/// Variant of the code, by the sign of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SquareRootCode {
    /// For a first moment, of either sign.
    Signed,
    /// For a second moment, which is not negative.
    Positive,
}

/// Number of bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Width {
    Four = 4,
    Eight = 8,
}

impl Width {
    pub(crate) fn of_bits(bits: usize) -> Option<Self> {
        match bits {
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            _ => None,
        }
    }

    pub(crate) const fn bits(self) -> usize {
        self as usize
    }

    /// Returns the bytes of the codes of a group.
    pub(crate) const fn group_bytes(self) -> usize {
        GROUP * self.bits() / 8
    }

    /// Unpacks the codes of a group into bytes. Two codes of 4 bits share a byte, one of each half of the group.
    #[inline(always)]
    fn unpacked(self, codes: &[u8]) -> [u8; GROUP] {
        let mut bits = [0; GROUP];
        if self == Self::Eight {
            bits = *whole(codes);
        } else {
            let codes: &[u8; GROUP / 2] = whole(codes);
            for lane in 0..GROUP / 2 {
                bits[lane] = codes[lane] & 0xf;
                bits[lane + GROUP / 2] = codes[lane] >> 4;
            }
        }
        bits
    }

    #[inline(always)]
    fn pack(self, bits: &[u8; GROUP], codes: &mut [u8]) {
        if self == Self::Eight {
            *whole_mut(codes) = *bits;
        } else {
            let codes: &mut [u8; GROUP / 2] = whole_mut(codes);
            for lane in 0..GROUP / 2 {
                codes[lane] = bits[lane] & 0xf | bits[lane + GROUP / 2] << 4;
            }
        }
    }
}

/// Returns a group as an array of its constant length.
#[inline(always)]
pub(super) fn whole<T, const N: usize>(group: &[T]) -> &[T; N] {
    group.first_chunk().expect("a group has this length")
}

/// Returns a group as a mutable array of its constant length.
#[inline(always)]
pub(super) fn whole_mut<T, const N: usize>(group: &mut [T]) -> &mut [T; N] {
    group.first_chunk_mut().expect("a group has this length")
}

/// Quantization scheme of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CodeScheme {
    pub(crate) root: SquareRootCode,
    pub(crate) width: Width,
}

impl CodeScheme {
    /// Returns `L` of the formulas.
    pub(crate) const fn levels(self) -> i32 {
        match (self.root, self.width) {
            (SquareRootCode::Signed, Width::Eight) => 127,
            (SquareRootCode::Signed, Width::Four) => 7,
            (SquareRootCode::Positive, Width::Eight) => 256,
            (SquareRootCode::Positive, Width::Four) => 16,
        }
    }

    /// Returns the factor from a number relative to its scale to the square of its root. It is the next number above `L^2`: the
    /// largest number may be one rounding step below 1, and must get the root `L` at any threshold.
    pub(crate) const fn squares(self) -> f32 {
        ((self.levels() * self.levels()) as f32).next_up()
    }

    /// Decodes the `codes` of a group.
    #[inline(always)]
    pub(crate) fn decode(self, codes: &[u8], scale: f32) -> Values {
        let bits = self.width.unpacked(codes);
        let unused = 32 - self.width.bits() as u32;
        // This times the square of the largest root is exactly 1.
        let part = 1.0 / (self.levels() * self.levels()) as f32;
        // Replaces zeros, which numbers far below their scale are rounded to. A whole group may be zero.
        let least = f32::from_bits(u32::from(scale > 0.0));
        let mut values = [0.0; GROUP];
        for lane in 0..GROUP {
            let code = i32::from(bits[lane]);
            values[lane] = if self.root == SquareRootCode::Signed {
                let root = (code << unused >> unused) as f32;
                root * root.abs() * part * scale
            } else {
                let root = (code + 1) as f32;
                let value = root * root * part * scale;
                // NaN stays NaN.
                if value < least { least } else { value }
            };
        }
        values
    }

    /// Encodes `values`, which have this scale, rounded by these thresholds.
    #[inline(always)]
    pub(crate) fn encode_in(
        self,
        scale: Scale,
        values: &Values,
        thresholds: &Values,
        codes: &mut [u8],
    ) {
        let mut moved = [0.0; GROUP];
        let values = if scale.part == 1.0 {
            values
        } else {
            for lane in 0..GROUP {
                moved[lane] = values[lane] * scale.part;
            }
            &moved
        };
        let bits = match self.root {
            SquareRootCode::Signed => self.bits::<true>(scale.inverse, values, thresholds),
            SquareRootCode::Positive => self.bits::<false>(scale.inverse, values, thresholds),
        };
        self.width.pack(&bits, codes);
    }

    #[inline(always)]
    fn bits<const SIGNED: bool>(
        self,
        inverse: f32,
        values: &Values,
        thresholds: &Values,
    ) -> [u8; GROUP] {
        let (levels, squares) = (self.levels() as f32, self.squares());
        // Also for NaN: zeros and NaN have no inverse.
        let least = if SIGNED { 0.0 } else { 1.0 };
        let mut bits = [0; GROUP];
        for lane in 0..GROUP {
            let value = values[lane];
            let square = value.abs() * inverse * squares;
            let below = square.sqrt().trunc();
            let up = square - below * below > thresholds[lane] * (below + below + 1.0);
            let root = if up { below + 1.0 } else { below };
            let root = if root > least { root } else { least };
            let root = if root < levels { root } else { levels };
            let code = if SIGNED {
                root.copysign(value)
            } else {
                root - 1.0
            };
            bits[lane] = (code + WHOLE).to_bits() as u8;
        }
        bits
    }
}

/// Scale of the numbers of a group.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// Largest magnitude; NaN if a number is not finite.
    pub(crate) largest: f32,
    /// A power of two that scales the numbers so that the inverse is a normal number.
    part: f32,
    inverse: f32,
}

impl Scale {
    pub(crate) const NONE: Self = Self {
        largest: 0.0,
        part: 1.0,
        inverse: 0.0,
    };

    #[inline(always)]
    pub(crate) fn of(values: &Values) -> Self {
        // Magnitudes are ordered like their bits, with those that are not finite above all.
        let mut largest = 0;
        for value in values {
            largest = i32::max(largest, (value.to_bits() & 0x7fff_ffff) as i32);
        }
        let largest = f32::from_bits(largest as u32);
        let largest = if largest.is_finite() {
            largest
        } else {
            f32::NAN
        };
        let part = if largest >= HUGE {
            0.25
        } else if largest < TINY {
            1.0 / TINY
        } else {
            1.0
        };
        Self {
            largest,
            part,
            // Not used for zeros and NaN.
            inverse: 1.0 / (largest * part),
        }
    }
}

/// After this is added, the lowest bits of a float are those of an integer in two's complement. A cast saturates, which takes
/// many instructions.
const WHOLE: f32 = 1.5 * 8_388_608.0;

/// Its inverse is normal; that of a larger scale may not be.
const HUGE: f32 = f32::from_bits(0x7e00_0000); // 2^125
const TINY: f32 = f32::from_bits(0x2000_0000); // 2^-63

#[cfg(test)]
mod tests;
