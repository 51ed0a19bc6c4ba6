//! Sums of squares in one kernel, of which a device need not be waited for.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Shape, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::ops::numeric::empty_device_dtype;

use super::kernel;

/// Elements that are worth a cube.
const GRAIN: usize = 1 << 14;
const MOST_CUBES: usize = 256;
/// Units of a cube where it may have so many.
const UNITS: usize = 256;

#[backend_extension(Cube: cfg(feature = "cubecl"), Fusion: cfg(feature = "fusion"))]
trait SumOfSquares: Backend {
    /// For every cube of the kernel the sums of squares of large, ordinary and small elements.
    #[fusion(dtype = computed(elements), shape = sums(elements))]
    fn sum_of_squares(elements: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl SumOfSquares for CubeBackend {
    fn sum_of_squares(elements: FloatTensor<Self>) -> FloatTensor<Self> {
        let client = elements.client.clone();
        let shape = sums(elements.meta.shape());
        let cubes = shape[0] / 3;
        let dtype = computed(elements.dtype);
        let sums = empty_device_dtype(client.clone(), elements.device.clone(), shape, dtype);
        let count = elements.meta.num_elements();
        let sizes = client.io_optimized_vector_sizes(elements.dtype.size());
        let sizes = sizes.filter(|size| elements.is_contiguous() && count.is_multiple_of(*size));
        let vector_size = sizes.max().unwrap_or(1);
        let most = client.properties().hardware.max_units_per_cube as usize;
        let units = if most >= UNITS { UNITS } else { 1 };
        // SAFETY: the elements are read through a view of their own strides, in vectors that divide them, within its
        // bounds; the sums are new, and each cube writes three that no other does, of as many as there are.
        unsafe {
            kernel::sum_squares::launch_unchecked(
                &client,
                CubeCount::new_1d(cubes as u32),
                CubeDim::new_1d(units as u32),
                elements.required_address_type(),
                vector_size,
                elements.clone().into_linear_view(),
                sums.clone().into_tensor_arg(),
                units,
                [elements.dtype, dtype].map(dtype_to_storage_type),
            );
        }
        sums
    }
}

/// The sums of a tensor of CubeCL's that has elements: of which numbers is for [`total`](super::total) to say.
pub(super) fn sums_of<const D: usize>(elements: Tensor<D>) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::sum_of_squares(elements.into_dispatch()))
}

/// Half types are computed in f32.
fn computed(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Three for every cube.
fn sums(elements: &Shape) -> Shape {
    let cubes = elements.num_elements().div_ceil(GRAIN).clamp(1, MOST_CUBES);
    Shape::new([3 * cubes])
}
