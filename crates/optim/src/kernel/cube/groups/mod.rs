//! The kernel for weights and states in formats: a group of elements at a time.

mod block;
mod group;
mod kernel;
mod noise;
mod state;
mod weight;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, cubecl};
use cubecl::calculate_cube_count_elemwise;
use cubecl::client::Client;
use cubecl::prelude::*;

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
        let client = &value.client;
        let others = states.iter().filter_map(full);
        let tensors = || [value, &gradient].into_iter().chain(others.clone());
        // Without a common vector size, element by element.
        let in_blocks = tensors().all(|tensor| is_divided_by(tensor, BLOCK));
        let groups = value.meta.num_elements().div_ceil(GROUP);
        let (units, cube_dim) = units(client, groups);
        let cube_count = calculate_cube_count_elemwise(client, groups * units.group, cube_dim);
        let address_type = tensors().map(CubeTensor::required_address_type).max();
        let number = |number| InputScalar::new(number, dtype_to_storage_type(DType::F32));
        let low = low.map(|low| LowLaunch::new(low.clone().into_linear_view()));
        let full = states.iter().filter_map(full);
        let types = [value.dtype, gradient.dtype].map(dtype_to_storage_type);
        // SAFETY: weight, gradient and full states have one shape; codes, scales and residual have a place for every group.
        // Each is read and written through a view of its own strides, in vectors that divide its rows, and within its bounds.
        // Those written have dense rows that don't overlap, and one owner. All units of a cube reach the same barriers: every
        // branch is decided when the kernel is compiled.
        unsafe {
            kernel::update_groups::launch_unchecked(
                client,
                cube_count,
                cube_dim,
                address_type.unwrap_or_default(),
                if in_blocks { BLOCK } else { 1 },
                gradient.into_linear_view(),
                value.clone().into_linear_view(),
                low.into_iter().collect(),
                states.iter().filter_map(packed).collect(),
                full.map(|state| state.clone().into_linear_view()).collect(),
                rule.numbers.into_iter().map(number).collect(),
                rule.program,
                noise.salt,
                format,
                units,
                types,
            );
        }
    }
    CubeOperands::new(all)
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
