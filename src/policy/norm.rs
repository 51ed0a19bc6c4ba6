use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::random::is_exact;

/// The sum of the squares of a tensor's elements, on its device, of which neither the largest nor the
/// smallest floats are lost.
///
/// Squares leave the range of f32 long before the elements do. So the elements are multiplied by a power
/// of two first, which changes no digit, where they are very large or very small.
#[derive(Clone, Debug)]
pub(super) struct Squares {
    /// The sum, and what the elements were multiplied by before.
    numbers: Tensor<1>,
}

/// Elements beyond this are made smaller.
const LARGE: f64 = (1u64 << 40) as f64;
/// By this.
const DOWN: f64 = 1.0 / ((1u128 << 100) as f64);
/// And those below this larger,
const SMALL: f64 = 1.0 / LARGE;
/// by this.
const UP: f64 = (1u128 << 80) as f64;

impl Squares {
    /// Half types are computed in f32.
    pub(super) fn of<const D: usize>(tensor: &Tensor<D>) -> Self {
        let elements = widened(tensor);
        if elements.shape().num_elements() == 0 {
            let numbers = Tensor::from_data([0.0, 1.0], (&elements.device(), elements.dtype()));
            return Self { numbers };
        }
        let largest = elements.clone().abs().max();
        if is_exact(&elements.device()) {
            // Read at once, so that most gradients need no copy.
            let factor = match largest.clone().into_scalar::<f64>() {
                largest if largest > LARGE => DOWN,
                largest if largest < SMALL => UP,
                _ => 1.0,
            };
            let scaled = match factor == 1.0 {
                true => elements,
                false => elements.mul_scalar(factor),
            };
            let numbers = vec![scaled.square().sum(), largest.full_like(factor)];
            let numbers = Tensor::cat(numbers, 0);
            return Self { numbers };
        }
        let large = largest.clone().greater_scalar(LARGE);
        let small = largest.clone().lower_scalar(SMALL);
        let factor = largest.ones_like();
        let factor = factor.mask_fill(large, DOWN).mask_fill(small, UP);
        let scaled = elements * factor.clone().expand([1; D]);
        let numbers = Tensor::cat(vec![scaled.square().sum(), factor], 0);
        Self { numbers }
    }

    /// What can be read together.
    fn kind(&self) -> (Device, DType) {
        (self.numbers.device(), self.numbers.dtype())
    }
}

/// The sums, in f64: read back from every device at once, each dtype.
pub(super) fn sums(squares: &[Squares]) -> Vec<f64> {
    let mut sums = vec![0.0; squares.len()];
    let mut left: Vec<usize> = (0..squares.len()).collect();
    while let Some(first) = left.first() {
        let kind = squares[*first].kind();
        let (here, elsewhere) = left
            .into_iter()
            .partition::<Vec<_>, _>(|index| squares[*index].kind() == kind);
        let numbers = here.iter().map(|index| squares[*index].numbers.clone());
        for (index, sum) in here.iter().zip(read(numbers.collect())) {
            sums[*index] = sum;
        }
        left = elsewhere;
    }
    sums
}

fn read(numbers: Vec<Tensor<1>>) -> Vec<f64> {
    let numbers = Tensor::cat(numbers, 0).into_data();
    let numbers: Vec<f64> = numbers.iter::<f64>().collect();
    let pairs = numbers.chunks_exact(2);
    pairs.map(|pair| pair[0] / pair[1].powi(2)).collect()
}

/// The tensor to compute statistics of, in f32 for half types: squares would overflow in f16.
pub(super) fn widened<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.clone().cast(FloatDType::F32),
        _ => tensor.clone(),
    }
}
