use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::LinearView;

use super::{DOWN, LARGE, SMALL, UP};

/// Sums the squares of large, ordinary and small elements, three sums per cube. Elements are stored as `F` and computed as `C`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn sum_squares<F: Float, C: Float, N: Size>(
    elements: LinearView<'_, Vector<F, N>>,
    sums: &mut Tensor<C>,
    #[comptime] units: usize,
    #[define(F, C)] _types: [ElemType; 2],
) {
    let mut large = Vector::<C, N>::zero();
    let mut ordinary = Vector::<C, N>::zero();
    let mut small = Vector::<C, N>::zero();
    let mut at = ABSOLUTE_POS;
    while at < elements.shape() {
        let values = Vector::<C, N>::cast_from(elements.read(at));
        let zero = Vector::zero();
        let magnitudes = values.abs();
        // NaN counts as ordinary.
        let is_large = magnitudes.greater_than(&Vector::new(C::new(LARGE as f32)));
        let is_small = magnitudes.less_than(&Vector::new(C::new(SMALL as f32)));
        let down = values * Vector::new(C::new(DOWN as f32));
        large += select_many(is_large, down * down, zero);
        let up = values * Vector::new(C::new(UP as f32));
        small += select_many(is_small, up * up, zero);
        let others = select_many(is_small, zero, values * values);
        ordinary += select_many(is_large, zero, others);
        at += CUBE_COUNT * units;
    }
    let unit = UNIT_POS as usize;
    let mut shared = Shared::new_slice(comptime!(3 * units));
    shared[3 * unit] = lanes(large);
    shared[3 * unit + 1] = lanes(ordinary);
    shared[3 * unit + 2] = lanes(small);
    #[unroll]
    for level in 1..comptime!(units.ilog2() + 1) {
        let half = comptime!(units >> level);
        sync_cube();
        if unit < half {
            #[unroll]
            for kind in 0..3usize {
                let other = shared[3 * (unit + half) + kind];
                shared[3 * unit + kind] += other;
            }
        }
    }
    // Unit 0 holds the sums of the cube.
    if unit == 0 {
        #[unroll]
        for kind in 0..3usize {
            sums[3 * CUBE_POS + kind] = shared[kind];
        }
    }
}

/// Returns the sum of the lanes.
#[cube]
fn lanes<C: Float, N: Size>(values: Vector<C, N>) -> C {
    let mut sum = values.extract(0usize);
    #[unroll]
    for lane in 1..N::value() {
        sum += values.extract(lane);
    }
    sum
}
