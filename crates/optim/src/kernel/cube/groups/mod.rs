//! The kernel for weights and states in formats: a group of elements at a time.

mod block;
mod group;
mod kernel;
mod noise;
mod state;
mod weight;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::ops::numeric::empty_device_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, cubecl};
use cubecl::calculate_cube_count_elemwise;
use cubecl::client::Client;
use cubecl::prelude::*;

use super::super::join::Join;
use super::super::single_pass::Stored;
use super::{CubeOperands, is_divided_by, writable};
use crate::format::{GROUP, Noise, WeightFormat};
use crate::rule::Traced;
use block::{BLOCK, BLOCKS};
use kernel::Units;
use state::PackedLaunch;
use weight::LowLaunch;

type Operand = Stored<CubeBackend>;

/// Applies a step to every group.
pub(super) fn update(
    rule: Traced,
    format: WeightFormat,
    noise: Noise,
    gradient: CubeTensor,
    operands: CubeOperands,
) -> CubeOperands {
    let all: Vec<Operand> = operands.all().map(writable_operand).collect();
    let (value, low, states) = match &all[..] {
        [Stored::Floats(value), states @ ..] => (value, None, states),
        [Stored::Split(value, low), states @ ..] => (value, Some(low), states),
        _ => unreachable!("a weight has its elements"),
    };
    if value.meta.num_elements() > 0 {
        let others = [&gradient]
            .into_iter()
            .chain(states.iter().filter_map(full));
        let grid = Grid::of(value, others);
        let number = |number| InputScalar::new(number, dtype_to_storage_type(DType::F32));
        let low = low.map(|low| LowLaunch::new(low.clone().into_linear_view(), format));
        let full = states.iter().filter_map(full);
        let types = [value.dtype, gradient.dtype].map(dtype_to_storage_type);
        // SAFETY: weight, gradient and full states have one shape; codes, scales and residual have a place for every group.
        // Each is read and written through a view of its own strides, in vectors that divide its rows, and within its bounds.
        // Those written have dense rows that don't overlap, and one owner. All units of a cube reach the same barriers: every
        // branch is decided when the kernel is compiled.
        unsafe {
            kernel::update_groups::launch_unchecked(
                &value.client,
                grid.cube_count,
                grid.cube_dim,
                grid.address_type,
                grid.vector_size,
                gradient.into_linear_view(),
                value.clone().into_linear_view(),
                low.into_iter().collect(),
                states.iter().filter_map(packed).collect(),
                full.map(|state| state.clone().into_linear_view()).collect(),
                rule.numbers.into_iter().map(number).collect(),
                rule.program,
                noise.salt,
                format,
                grid.units,
                types,
            );
        }
    }
    CubeOperands::new(all)
}

impl Join for CubeBackend {
    fn join(weight: CubeTensor, low: CubeTensor, format: WeightFormat) -> CubeTensor {
        let (client, device, shape) = (&weight.client, &weight.device, weight.meta.shape());
        let joined = empty_device_dtype(client.clone(), device.clone(), shape.clone(), DType::F32);
        if weight.meta.num_elements() == 0 {
            return joined;
        }
        let grid = Grid::of(&weight, [&joined]);
        let low = LowLaunch::new(low.into_linear_view(), format);
        let stored = dtype_to_storage_type(weight.dtype);
        // SAFETY: the tensors have one shape; each is read or written through a view of its own strides, in vectors that
        // divide its rows, and within its bounds. The new one has one owner.
        unsafe {
            kernel::join_groups::launch_unchecked(
                &weight.client.clone(),
                grid.cube_count,
                grid.cube_dim,
                grid.address_type,
                grid.vector_size,
                weight.into_linear_view(),
                low,
                joined.clone().into_linear_view(),
                grid.units,
                stored,
            );
        }
        joined
    }
}

/// The cubes of a kernel for groups, and the width of its reads.
struct Grid {
    cube_count: CubeCount,
    cube_dim: CubeDim,
    address_type: AddressType,
    vector_size: VectorSize,
    units: Units,
}

impl Grid {
    /// Returns the grid for a weight with other tensors of its shape.
    fn of<'t>(
        weight: &'t CubeTensor,
        others: impl IntoIterator<Item = &'t CubeTensor> + Clone,
    ) -> Self {
        let tensors = || [weight].into_iter().chain(others.clone());
        let client = &weight.client;
        // Without a common vector size, element by element.
        let in_blocks = tensors().all(|tensor| is_divided_by(tensor, BLOCK));
        let groups = weight.meta.num_elements().div_ceil(GROUP);
        let (units, cube_dim) = units(client, groups);
        let address_type = tensors().map(CubeTensor::required_address_type).max();
        Self {
            cube_count: calculate_cube_count_elemwise(client, groups * units.group, cube_dim),
            cube_dim,
            address_type: address_type.unwrap_or_default(),
            vector_size: if in_blocks { BLOCK } else { 1 },
            units,
        }
    }
}

/// Returns a unit for every block, in cubes of four groups; on a device with smaller cubes (CPUs) one for every group.
fn units(client: &Client, groups: usize) -> (Units, CubeDim) {
    const CUBE: usize = 4 * BLOCKS;
    if client.properties().hardware.max_units_per_cube as usize >= CUBE {
        let units = Units {
            group: BLOCKS,
            cube: CUBE,
        };
        return (units, CubeDim::new_1d(CUBE as u32));
    }
    let cube_dim = CubeDim::new(client, groups);
    let units = Units {
        group: 1,
        cube: cube_dim.num_elems() as usize,
    };
    (units, cube_dim)
}

fn writable_operand(operand: Operand) -> Operand {
    match operand {
        Stored::Nothing => Stored::Nothing,
        Stored::Floats(floats) => Stored::Floats(writable(floats)),
        Stored::Split(floats, words) => Stored::Split(writable(floats), writable(words)),
        Stored::Codes(scales, codes, scheme) => {
            Stored::Codes(writable(scales), writable(codes), scheme)
        }
    }
}

fn full(state: &Operand) -> Option<&CubeTensor> {
    match state {
        Stored::Floats(state) => Some(state),
        _ => None,
    }
}

fn packed(state: &Operand) -> Option<PackedLaunch> {
    match state {
        Stored::Codes(scales, codes, scheme) => Some(PackedLaunch::new(
            codes.clone().into_linear_view(),
            scales.clone().into_linear_view(),
            *scheme,
        )),
        _ => None,
    }
}
