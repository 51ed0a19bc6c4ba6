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
mod tests;
