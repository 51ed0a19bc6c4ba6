//! Functions of f32 that loops are vectorized with, and reductions whose order is fixed.

/// Defines a function that is compiled for the instruction set of the processor. Its body has plain loops, and no closure.
macro_rules! vectorized {
    (
        $(#[$attribute:meta])*
        $public:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $output:ty $body:block
    ) => {
        $(#[$attribute])*
        $public fn $name($($argument: $type),*) -> $output {
            struct Run<T>(T);

            impl backburn_base::Loop for Run<($($type,)*)> {
                type Output = $output;

                #[inline(always)]
                fn call(self) -> Self::Output {
                    let Run(($($argument,)*)) = self;
                    $body
                }
            }

            backburn_base::vectorized(Run(($($argument,)*)))
        }
    };
}

pub(crate) use vectorized;

/// Number of partial sums of a reduction, which are in registers.
pub(crate) const LANES: usize = 16;

/// Elements that are added up before they are added to the sum, which bounds its rounding.
pub(crate) const BLOCK: usize = 1024;

/// Rounds to an integer when it is added to a number below `2^22`.
const ROUND: f32 = 12_582_912.0;

/// Returns `n` and `e^r - 1`, where `x = n ln 2 + r` and `|r|` is at most half of `ln 2`.
#[inline(always)]
fn reduced(x: f32) -> (i32, f32) {
    // Beyond these bounds the result is zero or infinite. NaN stays.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let whole = rounded - ROUND;
    // `ln 2` in two parts, so that the first product is exact.
    let r = x - whole * (355.0 / 512.0) - whole * -2.121_944_4e-4;
    // The Taylor series to the seventh power, whose rest is below 6e-9.
    let mut sum = 1.0 / 5040.0;
    sum = sum * r + 1.0 / 720.0;
    sum = sum * r + 1.0 / 120.0;
    sum = sum * r + 1.0 / 24.0;
    sum = sum * r + 1.0 / 6.0;
    sum = sum * r + 0.5;
    (n, sum * r * r + r)
}

/// Returns `2^n`.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Returns `e^x`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (n, rest) = reduced(x);
    // In two factors: `n` may be outside of the exponents of f32.
    let half = n >> 1;
    (rest + 1.0) * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// Returns `s = 1 / (1 + e^-x)` and `1 - s`, which is precise also where it is small.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> [f32; 2] {
    // At most 1: the exponential of a large number would be infinite.
    let e = exp(-x.abs());
    let of_magnitude = 1.0 / (1.0 + e);
    let rest = e * of_magnitude;
    match x < 0.0 {
        true => [rest, of_magnitude],
        false => [of_magnitude, rest],
    }
}

/// Returns the hyperbolic tangent, as `t / (t + 2)` with `t = e^2x - 1`.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let x = if x < -10.0 { -10.0 } else { x };
    let x = if x > 10.0 { 10.0 } else { x };
    let (n, rest) = reduced(2.0 * x);
    let scale = power_of_two(n);
    let t = scale * rest + (scale - 1.0);
    t / (t + 2.0)
}

/// Combines the lanes of a reduction, in pairs.
#[inline(always)]
pub(crate) fn joined(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = join(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Joins a term of each element of a slice, or of each pair of two slices. Not a function: a closure would be compiled for the
/// baseline processor.
macro_rules! reduce {
    ($start:expr, $join:ident: $x:ident in $a:expr => $term:expr) => {
        $crate::simd::reduce!($start, $join: $x in $a, _y in $a => $term)
    };
    ($start:expr, $join:ident: $x:ident in $a:expr, $y:ident in $b:expr => $term:expr) => {{
        use $crate::simd::{BLOCK, LANES, $join, joined};

        let mut all = $start;
        for (a, b) in $a.chunks(BLOCK).zip($b.chunks(BLOCK)) {
            let mut lanes = [$start; LANES];
            let (wholes_a, rest_a) = a.as_chunks::<LANES>();
            let (wholes_b, rest_b) = b.as_chunks::<LANES>();
            for (a, b) in wholes_a.iter().zip(wholes_b) {
                for lane in 0..LANES {
                    let ($x, $y) = (a[lane], b[lane]);
                    lanes[lane] = $join(lanes[lane], $term);
                }
            }
            for ((lane, a), b) in lanes.iter_mut().zip(rest_a).zip(rest_b) {
                let ($x, $y) = (*a, *b);
                *lane = $join(*lane, $term);
            }
            all = $join(all, joined(lanes, $join));
        }
        all
    }};
}

pub(crate) use reduce;

#[inline(always)]
pub(crate) fn add(a: f32, b: f32) -> f32 {
    a + b
}

/// Returns the larger number, or `a` if `b` is NaN.
#[inline(always)]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Returns the sum of a slice.
#[inline(always)]
pub(crate) fn sum(a: &[f32]) -> f32 {
    reduce!(0.0, add: x in a => x)
}

/// Returns the sum of the products of `a` and `b`, each less a shift.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32], shifts: [f32; 2]) -> f32 {
    reduce!(0.0, add: x in a, y in b => (x - shifts[0]) * (y - shifts[1]))
}

/// Returns the largest element, or negative infinity if there is none. NaN is passed over.
#[inline(always)]
pub(crate) fn max(a: &[f32]) -> f32 {
    reduce!(f32::NEG_INFINITY, larger: x in a => x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_near_those_of_f64() {
        type Pair = (fn(f32) -> f32, fn(f64) -> f64);
        let pairs: [Pair; 4] = [
            (exp, f64::exp),
            (tanh, f64::tanh),
            (|x| sigmoid(x)[0], |x| 1.0 / (1.0 + (-x).exp())),
            (|x| sigmoid(x)[1], |x| 1.0 / (1.0 + x.exp())),
        ];
        for step in -200_000..200_000 {
            let x = step as f32 * 5.25e-4;
            for (index, (found, exact)) in pairs.into_iter().enumerate() {
                let (found, exact) = (f64::from(found(x)), exact(f64::from(x)));
                if exact > f64::from(f32::MAX) {
                    assert_eq!(found, f64::INFINITY, "{index}: {x}");
                    continue;
                }
                let tolerance = exact.abs() * 3e-7 + 2e-45;
                assert!(
                    (found - exact).abs() <= tolerance,
                    "{index}: {x}: {found} and {exact}"
                );
            }
        }
        for (function, _) in pairs {
            assert!(function(f32::NAN).is_nan());
        }
        assert_eq!(
            (exp(f32::NEG_INFINITY), exp(f32::INFINITY)),
            (0.0, f32::INFINITY)
        );
        assert_eq!((tanh(f32::NEG_INFINITY), tanh(f32::INFINITY)), (-1.0, 1.0));
        assert_eq!(sigmoid(f32::NEG_INFINITY), [0.0, 1.0]);
        assert_eq!(sigmoid(f32::INFINITY), [1.0, 0.0]);
    }
}
