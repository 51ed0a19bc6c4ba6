//! Sums of squares in one CubeCL kernel, without waiting for the device.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Device, FloatDType, Shape, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::ops::numeric::empty_device_dtype;

use super::{LARGE, SMALL, kernel, total};

/// Elements per cube.
const GRAIN: usize = 1 << 14;
const MOST_CUBES: usize = 256;
/// Units per cube where the device supports it; a power of two, because the reduction halves them.
const UNITS: usize = 256;

#[backend_extension(Cube: cfg(feature = "cubecl"), Fusion: cfg(feature = "fusion"))]
trait SumOfSquares: Backend {
    /// Returns three sums per cube of the kernel: of the squares of large, ordinary and small elements.
    #[fusion(dtype = compute_dtype(elements), shape = sums_shape(elements))]
    fn sum_of_squares(elements: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl SumOfSquares for CubeBackend {
    fn sum_of_squares(elements: FloatTensor<Self>) -> FloatTensor<Self> {
        let client = elements.client.clone();
        let shape = sums_shape(elements.meta.shape());
        let cubes = shape[0] / 3;
        let dtype = compute_dtype(elements.dtype);
        let sums = empty_device_dtype(client.clone(), elements.device.clone(), shape, dtype);
        let count = elements.meta.num_elements();
        let sizes = client.io_optimized_vector_sizes(elements.dtype.size());
        let sizes = sizes.filter(|size| elements.is_contiguous() && count.is_multiple_of(*size));
        let vector_size = sizes.max().unwrap_or(1);
        let most = client.properties().hardware.max_units_per_cube as usize;
        let units = if most >= UNITS { UNITS } else { 1 };
        // The indices count the elements, which an expanded view has more of than its buffer, and exceed them by one step.
        let address_type = AddressType::from_len(count + cubes * units);
        // SAFETY: the elements are read through a view of their own strides, in vectors that divide them, within its
        // bounds; the sums are new, and each cube writes three that no other does, of as many as there are.
        unsafe {
            kernel::sum_squares::launch_unchecked(
                &client,
                CubeCount::new_1d(cubes as u32),
                CubeDim::new_1d(units as u32),
                address_type.max(elements.required_address_type()),
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

/// Returns the partial sums of a non-empty tensor on a CubeCL device, for [`total`].
pub(crate) fn sums_of<const D: usize>(elements: Tensor<D>) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::sum_of_squares(elements.into_dispatch()))
}

/// Returns the type of the computation: f64 for f64, f32 for all others.
fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Returns the shape of the partial sums.
fn sums_shape(elements: &Shape) -> Shape {
    let cubes = elements.num_elements().div_ceil(GRAIN).clamp(1, MOST_CUBES);
    Shape::new([3 * cubes])
}

/// Tests the kernel with known sums on a CubeCL device. Returns a wrong result as an error.
pub(crate) fn check_kernel(device: &Device, dtype: FloatDType) -> Result<(), String> {
    // All elements of f16 are ordinary.
    let magnitudes = match dtype {
        FloatDType::F16 => &[1.0][..],
        _ => &[1.0, LARGE * LARGE.sqrt(), SMALL * SMALL.sqrt()],
    };
    for magnitude in magnitudes {
        let mut elements = [0.0; 70];
        (elements[0], elements[69]) = (3.0 * magnitude, -4.0 * magnitude);
        let elements = Tensor::<1>::from_data(elements, (device, DType::from(dtype)));
        let sums = sums_of(elements).try_into_data();
        let found = total(&sums.map_err(|error| error.to_string())?);
        let expected = 25.0 * magnitude.powi(2);
        if found != expected {
            return Err(format!(
                "3² + 4², times {magnitude}², gave {found} instead of {expected}"
            ));
        }
    }
    Ok(())
}
