//! One kernel for all rules, which runs what one does operation by operation, on a vector of elements; the operations
//! are known when it is compiled.

mod groups;
mod kernel;
mod program;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, cubecl};
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::std::tensor::is_contiguous_pitched;

use super::super::rule::Traced;
use super::Update;
use super::single_pass::{Operands, SinglePass};

type CubeOperands = Operands<CubeBackend>;

/// Takes a step with every element, or with every group of elements in formats.
impl SinglePass for CubeBackend {
    fn update(gradient: CubeTensor, operands: CubeOperands, update: Update) -> CubeOperands {
        let Some((format, noise)) = update.formats else {
            let floats = operands.into_floats().into_iter();
            let floats: Vec<_> = floats.map(writable).collect();
            if floats[0].meta.num_elements() > 0 {
                each(update.traced(), &floats[0], gradient, &floats[1..]);
            }
            return Operands::of_floats(floats);
        };
        groups::update(update.traced(), format, noise, gradient, operands)
    }
}

/// `tensor` in dense rows and a buffer with one owner: itself, or a copy.
///
/// A runtime may leave room behind a buffer and behind every row of it, as CUDA's does.
fn writable(tensor: CubeTensor) -> CubeTensor {
    let writable = |tensor: &CubeTensor| tensor.can_mut() && has_dense_rows(tensor);
    if writable(&tensor) {
        return tensor;
    }
    let tensor = into_contiguous(tensor);
    match writable(&tensor) {
        true => tensor,
        false => tensor.copy(),
    }
}

fn has_dense_rows(tensor: &CubeTensor) -> bool {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    tensor.is_contiguous() || is_contiguous_pitched(shape, strides) && tensor.is_nonoverlapping()
}

/// Whether `tensor` can be read and written in vectors of this size, one after the other.
fn is_divided_by(tensor: &CubeTensor, size: VectorSize) -> bool {
    if tensor.is_contiguous() {
        return tensor.meta.num_elements().is_multiple_of(size);
    }
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let [.., length] = shape[..] else {
        return false;
    };
    let rows = strides[..strides.len() - 1].iter();
    has_dense_rows(tensor)
        && length.is_multiple_of(size)
        && rows.into_iter().all(|stride| stride.is_multiple_of(size))
}

/// Updates every element of these, which are writable.
fn each(rule: Traced, parameter: &CubeTensor, gradient: CubeTensor, states: &[CubeTensor]) {
    let client = &parameter.client;
    let tensors = || [parameter, &gradient].into_iter().chain(states);
    // Where they lie otherwise, element by element.
    let sizes = client.io_optimized_vector_sizes(parameter.dtype.size());
    let sizes = sizes.filter(|size| tensors().all(|tensor| is_divided_by(tensor, *size)));
    let vector_size = sizes.max().unwrap_or(1);
    let units = parameter.meta.num_elements() / vector_size;
    let cube_dim = CubeDim::new(client, units);
    let cube_count = calculate_cube_count_elemwise(client, units, cube_dim);
    let address_type = tensors().map(CubeTensor::required_address_type).max();
    // Half types are computed in f32.
    let computed = match parameter.dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    // As they are stored and as they are computed with.
    let types = [parameter.dtype, computed].map(dtype_to_storage_type);
    let numbers = rule.numbers.into_iter();
    let numbers = numbers.map(|number| InputScalar::new(number, types[1]));
    let states = states.iter().map(|state| state.clone().into_linear_view());
    // SAFETY: the tensors have one shape, and each is read and written through a view of its own strides, in
    // vectors that divide its rows; those written have dense rows that don't overlap, and one owner; every
    // unit ends before it touches an element that is not there.
    unsafe {
        kernel::update::launch_unchecked(
            client,
            cube_count,
            cube_dim,
            address_type.unwrap_or_default(),
            vector_size,
            gradient.into_linear_view(),
            parameter.clone().into_linear_view(),
            states.collect(),
            numbers.collect(),
            rule.program,
            types,
        );
    }
}
