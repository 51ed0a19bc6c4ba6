//! The elements of tensors on `flex`, as slices of f32, and the types of computations.

use std::sync::Arc;

use backburn_base::{AnyTensor, is_flex, of_data};
use burn::tensor::{Bytes, DType, Element, Shape, Tensor, TensorData, bf16, f16};
use bytemuck::cast_slice;
use rayon::prelude::*;

use crate::product::Matrix;
use crate::simd::vectorized;

/// Elements of a task of an element-wise operation.
pub(crate) const TASK: usize = 16 * 1024;

/// Largest number of tasks that have sums of their own.
const SUMS: usize = 64;

/// Returns the type in which operations on tensors of `dtype` compute: f32 for half types.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Returns the parameter `x` in floats: it may be quantized.
pub(crate) fn dense<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::QFloat(_) => x.dequantize(),
        _ => x,
    }
}

/// Returns the number of rows of a task, for a matrix with this number of elements and elements of a row: a function of the shape only,
/// so that sums over tasks have a fixed order. There are at most [`SUMS`] tasks, because each has a sum of its own.
pub(crate) fn rows_of_task(elements: usize, row: usize) -> usize {
    let row = row.max(1);
    (TASK / row).max((elements / row).div_ceil(SUMS)).max(1)
}

/// Returns `true` if the kernels compute with these tensors: they are on `flex`, in f32 or a half type.
pub(crate) fn have_kernel(tensors: &[AnyTensor]) -> bool {
    let has_kernel = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    let mut tensors = tensors.iter();
    // `backburn-base` may have the feature `flex` if this crate does not.
    cfg!(feature = "flex") && tensors.all(|it| is_flex(&it.device()) && has_kernel(it.dtype()))
}

/// The elements of a tensor in f32: its buffer, or a copy if it has another type.
pub(crate) struct Elements {
    bytes: Arc<Bytes>,
    start: usize,
    pub(crate) shape: Vec<usize>,
    strides: Vec<usize>,
}

impl Elements {
    /// Returns the elements in the order of the shape.
    pub(crate) fn contiguous(tensor: &AnyTensor) -> Self {
        Self::new(tensor, usize::MAX)
    }

    /// Returns the elements with the rows in any order: the last stride is 1.
    pub(crate) fn rows(tensor: &AnyTensor) -> Self {
        Self::new(tensor, 1)
    }

    /// Returns the elements with any strides.
    pub(crate) fn strided(tensor: &AnyTensor) -> Self {
        Self::new(tensor, 0)
    }

    /// Returns the buffer of the tensor if it is in f32 and the last dimensions, `ordered` of them, have the strides of a contiguous
    /// tensor, otherwise a copy.
    fn new(tensor: &AnyTensor, ordered: usize) -> Self {
        let shape = tensor.shape().to_vec();
        let mut contiguous = vec![1; shape.len()];
        for dim in (1..shape.len()).rev() {
            contiguous[dim - 1] = contiguous[dim] * shape[dim];
        }
        #[cfg(feature = "flex")]
        if tensor.dtype() == DType::F32 {
            let primitive = tensor.0.clone().try_into_primitive::<burn::backend::Flex>();
            let primitive = primitive.expect("the tensor is on `flex`");
            let layout = primitive.layout();
            let strides = layout.strides().iter().copied().map(usize::try_from);
            let first = shape.len().saturating_sub(ordered);
            if let Ok(strides) = strides.collect::<Result<Vec<_>, _>>()
                && strides[first..] == contiguous[first..]
            {
                return Self {
                    bytes: primitive.data_arc(),
                    start: layout.start_offset(),
                    shape,
                    strides,
                };
            }
        }
        let _ = ordered; // Read on `flex` only.
        let data = tensor.0.clone().into_data();
        let copied = match data.dtype() {
            DType::BF16 => converted(data.as_slice().expect("it is in bf16"), widen_bf16),
            DType::F16 => converted(data.as_slice().expect("it is in f16"), widen_f16),
            _ => data.try_into_vec().expect("it is in f32"),
        };
        Self {
            bytes: Arc::new(Bytes::from_elems(copied)),
            start: 0,
            shape,
            strides: contiguous,
        }
    }

    /// Returns contiguous elements.
    pub(crate) fn get(&self) -> &[f32] {
        &self.at(&[])[..self.shape.iter().product::<usize>()]
    }

    /// Returns the elements from the one at `index` in the first dimensions on.
    fn at(&self, index: &[usize]) -> &[f32] {
        let all = cast_slice::<u8, f32>(&self.bytes);
        let steps = index.iter().zip(&self.strides);
        let start = self.start + steps.map(|(index, stride)| index * stride).sum::<usize>();
        &all[start.min(all.len())..]
    }

    /// Returns the row at `index` in all dimensions but the last.
    pub(crate) fn row(&self, index: &[usize]) -> &[f32] {
        &self.at(index)[..self.shape[index.len()]]
    }

    /// Returns the matrix at `index` in all dimensions but the last two.
    pub(crate) fn matrix(&self, index: &[usize]) -> Matrix<'_> {
        let last = [index.len(), index.len() + 1];
        Matrix {
            elements: self.at(index),
            sizes: last.map(|dim| self.shape[dim]),
            strides: last.map(|dim| self.strides[dim]),
        }
    }

    /// Returns contiguous elements as a matrix of the rows of all dimensions.
    pub(crate) fn flat(&self) -> Matrix<'_> {
        let (columns, others) = self.shape.split_last().expect("the tensor has rows");
        Matrix::new(self.get(), others.iter().product(), *columns)
    }
}

/// Returns `true` if this is a matrix on `flex` whose columns follow each other in memory, such as the transposed weight of a layer.
pub(crate) fn is_transposed(tensor: &AnyTensor) -> bool {
    #[cfg(feature = "flex")]
    if let Ok(tensor) = tensor.0.clone().try_into_primitive::<burn::backend::Flex>() {
        return matches!(tensor.layout().strides(), [1, column] if *column != 1);
    }
    let _ = tensor;
    false
}

/// Creates a tensor of `elements` on the device of `like`, in the type of `like`.
pub(crate) fn tensor(elements: Vec<f32>, shape: impl Into<Shape>, like: &AnyTensor) -> AnyTensor {
    let shape = shape.into();
    let data = match like.dtype() {
        DType::BF16 => TensorData::new(converted(&elements, narrow_bf16), shape),
        DType::F16 => TensorData::new(converted(&elements, narrow_f16), shape),
        _ => TensorData::new(elements, shape),
    };
    AnyTensor(of_data(data, &like.device()))
}

fn converted<A: Element, B: Element>(from: &[A], task: fn(&[A], &mut [B])) -> Vec<B> {
    let mut to = vec![B::default(); from.len()];
    let tasks = to.par_chunks_mut(TASK).zip(from.par_chunks(TASK));
    tasks.for_each(|(to, from)| task(from, to));
    to
}

macro_rules! conversion {
    ($name:ident: $from:ty => $to:ty, $convert:path) => {
        vectorized! {
            fn $name(from: &[$from], to: &mut [$to]) -> () {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = $convert(*from);
                }
            }
        }
    };
}

conversion!(widen_bf16: bf16 => f32, bf16::to_f32);
conversion!(narrow_bf16: f32 => bf16, bf16::from_f32);
conversion!(widen_f16: f16 => f32, f16::to_f32);
conversion!(narrow_f16: f32 => f16, f16::from_f32);

/// Multiplies each element by a factor.
pub(crate) fn scaled(mut all: Vec<f32>, factor: f32) -> Vec<f32> {
    if factor != 1.0 {
        let tasks = all.par_chunks_mut(TASK);
        tasks.for_each(|task| task.iter_mut().for_each(|number| *number *= factor));
    }
    all
}

/// Sums slices of `length` elements over all tasks, in the order of the tasks.
pub(crate) fn sum_of_tasks(tasks: Vec<Vec<f32>>, length: usize) -> Vec<f32> {
    let mut sums = vec![0.0; length];
    for task in &tasks {
        add_all(&mut sums, task);
    }
    sums
}

vectorized! {
    pub(crate) fn add_all(sums: &mut [f32], terms: &[f32]) -> () {
        for (sum, term) in sums.iter_mut().zip(terms) {
            *sum += term;
        }
    }
}
