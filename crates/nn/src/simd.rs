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

/// Returns `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
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

/// Returns the sum of partial sums.
#[inline(always)]
pub(crate) fn total(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Returns the sum of the products of two slices.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    dot_shifted(a, b, 0.0)
}

/// Returns the sum of the products of `a` and `b - shift`.
#[inline(always)]
pub(crate) fn dot_shifted(a: &[f32], b: &[f32], shift: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (wholes_a, rest_a) = a.as_chunks::<LANES>();
    let (wholes_b, rest_b) = b.as_chunks::<LANES>();
    for (a, b) in wholes_a.iter().zip(wholes_b) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * (b[lane] - shift);
        }
    }
    for (a, b) in rest_a.iter().zip(rest_b) {
        lanes[0] += a * (b - shift);
    }
    total(lanes)
}

/// Returns the sum of a slice.
#[inline(always)]
pub(crate) fn sum(a: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (wholes, rest) = a.as_chunks::<LANES>();
    for a in wholes {
        for lane in 0..LANES {
            lanes[lane] += a[lane];
        }
    }
    for a in rest {
        lanes[0] += a;
    }
    total(lanes)
}

/// Returns the largest element, or negative infinity if there is none. NaN is passed over.
#[inline(always)]
pub(crate) fn max(a: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (wholes, rest) = a.as_chunks::<LANES>();
    for a in wholes {
        for lane in 0..LANES {
            lanes[lane] = if a[lane] > lanes[lane] {
                a[lane]
            } else {
                lanes[lane]
            };
        }
    }
    for a in rest {
        lanes[0] = if *a > lanes[0] { *a } else { lanes[0] };
    }
    let mut largest = f32::NEG_INFINITY;
    for lane in lanes {
        largest = if lane > largest { lane } else { largest };
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_near_those_of_f64() {
        type Pair = (fn(f32) -> f32, fn(f64) -> f64);
        let pairs: [Pair; 3] = [
            (exp, f64::exp),
            (tanh, f64::tanh),
            (sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        ];
        for step in -200_000..200_000 {
            let x = step as f32 * 4.3e-4;
            for (index, (found, exact)) in pairs.into_iter().enumerate() {
                let (found, exact) = (f64::from(found(x)), exact(f64::from(x)));
                let tolerance = exact.abs() * 3e-7 + 2e-45;
                assert!(
                    (found - exact).abs() <= tolerance,
                    "{index}: {x}: {found} and {exact}"
                );
            }
        }
        for function in [exp, tanh, sigmoid] {
            assert!(function(f32::NAN).is_nan());
        }
        assert_eq!(
            (exp(f32::NEG_INFINITY), exp(f32::INFINITY)),
            (0.0, f32::INFINITY)
        );
        assert_eq!((tanh(f32::NEG_INFINITY), tanh(f32::INFINITY)), (-1.0, 1.0));
    }
}
