use std::ops::{Add, Div, Mul, Sub};

/// The number type of a formula: an element in f32, or a traced value for devices that run the formula as a kernel.
///
/// Every operation rounds as it does on a tensor of that type, in the order in which it is written.
pub trait Number:
    Copy
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + sealed::Sealed
{
    /// Returns a hyperparameter or a constant, rounded as Burn rounds its scalars.
    fn of(number: f64) -> Self;

    /// Returns the square root.
    fn sqrt(self) -> Self;

    /// Returns `then` if this is less than `other`, or else `otherwise`. If one of them is NaN, returns `otherwise`.
    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self;

    /// Returns `other` if it is larger, or else this.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.if_less(other, other, self)
    }

    /// Returns 1 with the sign of this; zero for zero and NaN.
    #[inline(always)]
    fn sign(self) -> Self {
        let zero = Self::of(0.0);
        let negative = self.if_less(zero, Self::of(-1.0), zero);
        zero.if_less(self, Self::of(1.0), negative)
    }
}

pub(super) mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for f32 {}

impl Number for f32 {
    #[inline(always)]
    fn of(number: f64) -> Self {
        number as Self
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }

    #[inline(always)]
    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
        if self < other { then } else { otherwise }
    }
}
