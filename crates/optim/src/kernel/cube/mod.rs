//! A kernel for all rules, which runs the operations of a rule on a vector of elements. The operations are known when the
//! kernel is compiled.

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
use super::single_pass::{Operands, SinglePass, Stored};

type CubeOperands = Operands<CubeBackend>;

/// Applies a step to every element, or to every group of elements in formats.
impl SinglePass for CubeBackend {
    fn update(gradient: CubeTensor, operands: CubeOperands, update: Update) -> CubeOperands {
        let Some((format, noise)) = update.formats else {
            let floats = operands.all().map(|stored| match stored {
                Stored::Floats(floats) => writable(floats),
                _ => unreachable!("without formats there are floats alone"),
            });
            let floats: Vec<_> = floats.collect();
            if floats[0].meta.num_elements() > 0 {
                each(update.traced(), &floats[0], gradient, &floats[1..]);
            }
            return Operands::new(floats.into_iter().map(Stored::Floats));
        };
        groups::update(update.traced(), format, noise, gradient, operands)
    }
}

/// Returns `tensor` in dense rows and a buffer with one owner: itself, or a copy.
///
/// A runtime may pad a buffer and every row of it, as CUDA's does.
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

/// Returns `true` if `tensor` can be read and written in consecutive vectors of this size.
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

/// Updates every element of these tensors, which are writable.
fn each(rule: Traced, parameter: &CubeTensor, gradient: CubeTensor, states: &[CubeTensor]) {
    let client = &parameter.client;
    let tensors = || [parameter, &gradient].into_iter().chain(states);
    // Without a common vector size, element by element.
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
    // The types of storage and of computation.
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
