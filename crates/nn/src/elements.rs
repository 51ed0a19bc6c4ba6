//! The elements of tensors on `flex`, as slices of f32, and the types of computations.

use backburn_base::{AnyTensor, of_data};
#[cfg(feature = "flex")]
use burn::backend::Flex;
#[cfg(feature = "flex")]
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Element, Shape, Tensor, TensorData, bf16, f16};
use rayon::prelude::*;

use crate::product::Matrix;
use crate::simd::vectorized;

/// Elements of a task of an element-wise operation.
pub(crate) const TASK: usize = 16 * 1024;

/// Returns the type in which tensors of `dtype` are computed with: half types in f32.
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

/// Returns the number of rows of a task: a function of the shape only, so that sums over tasks have a fixed order.
pub(crate) fn rows_of_task(row: usize) -> usize {
    (TASK / row.max(1)).max(1)
}

/// Returns `true` if the kernels compute with these tensors: they are on `flex`, in f32 or a half type.
pub(crate) fn have_kernel(tensors: &[AnyTensor]) -> bool {
    let is_small =
        |tensor: &AnyTensor| matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
    let has_kernel = |tensor: &AnyTensor| is_small(tensor) && is_flex(tensor);
    tensors.iter().all(has_kernel)
}

fn is_flex(tensor: &AnyTensor) -> bool {
    #[allow(unreachable_patterns, unused_variables)] // The variants depend on the features.
    match tensor.device().inner().as_dispatch() {
        #[cfg(feature = "flex")]
        burn::backend::DispatchDevice::Flex(_) => true,
        _ => false,
    }
}

/// The elements of a tensor in f32: its buffer, or a copy if it has another type.
pub(crate) struct Elements {
    buffer: Buffer,
    start: usize,
    strides: Vec<usize>,
}

enum Buffer {
    Copied(Vec<f32>),
    #[cfg(feature = "flex")]
    Shared(FloatTensor<Flex>),
}

impl Elements {
    /// Returns the elements in the order of the shape.
    pub(crate) fn contiguous(tensor: &AnyTensor) -> Self {
        Self::new(tensor, |shape, strides| {
            *strides == contiguous_strides(shape)
        })
    }

    /// Returns the elements with the rows in any order: the last stride is 1.
    pub(crate) fn rows(tensor: &AnyTensor) -> Self {
        Self::new(tensor, |shape, strides| {
            strides.last() == Some(&1) || shape.last() == Some(&1)
        })
    }

    /// Returns the elements with any strides.
    pub(crate) fn strided(tensor: &AnyTensor) -> Self {
        Self::new(tensor, |_, _| true)
    }

    /// Returns the buffer of the tensor if it is in f32 and its strides fit, otherwise a copy.
    fn new(tensor: &AnyTensor, fits: fn(&[usize], &[usize]) -> bool) -> Self {
        #[cfg(feature = "flex")]
        if tensor.dtype() == DType::F32 {
            let primitive = tensor.0.clone().try_into_primitive::<Flex>();
            let primitive = primitive.expect("the tensor is on `flex`");
            let layout = primitive.layout();
            let strides = layout.strides().iter().copied().map(usize::try_from);
            if let Ok(strides) = strides.collect::<Result<Vec<_>, _>>()
                && fits(&tensor.shape(), &strides)
            {
                return Self {
                    start: layout.start_offset(),
                    buffer: Buffer::Shared(primitive),
                    strides,
                };
            }
        }
        let data = tensor.0.clone().into_data();
        Self {
            buffer: Buffer::Copied(match data.dtype() {
                DType::BF16 => converted(data.as_slice().expect("it is in bf16"), widen_bf16),
                DType::F16 => converted(data.as_slice().expect("it is in f16"), widen_f16),
                _ => data.try_into_vec().expect("it is in f32"),
            }),
            start: 0,
            strides: contiguous_strides(&tensor.shape()),
        }
    }

    /// Returns the elements from the first one on.
    pub(crate) fn get(&self) -> &[f32] {
        let all = match &self.buffer {
            Buffer::Copied(all) => all,
            #[cfg(feature = "flex")]
            Buffer::Shared(tensor) => tensor.storage::<f32>(),
        };
        &all[self.start.min(all.len())..]
    }

    /// Returns the elements of a tensor of rank 2 as a matrix.
    pub(crate) fn matrix(&self, sizes: [usize; 2]) -> Matrix<'_> {
        Matrix {
            elements: self.get(),
            sizes,
            strides: self.strides(),
        }
    }

    /// Returns the distance of neighbours in each dimension.
    pub(crate) fn strides<const D: usize>(&self) -> [usize; D] {
        let strides = self.strides.as_slice().try_into();
        strides.expect("the rank is that of the tensor")
    }
}

fn contiguous_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    strides
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
