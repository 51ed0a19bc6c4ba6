use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::super::program;
use super::block::{BLOCK, Block, lanes, read, write};
use super::group::Group;
use super::noise;
use super::state::{INFINITE, Packed, QUIET};
use super::weight::{Low, stochastic};
use crate::format::{GROUP, WeightFormat};
use crate::rule::Program;

/// Distribution of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Units {
    /// Units of a group.
    pub(super) group: usize,
    /// Units of a cube.
    pub(super) cube: usize,
}

/// Updates the elements of a group in f32: the units of the group read them and write them back in their formats. Weights are
/// stored as `F`, the gradient as `G`; the states in codes precede the others.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn update_groups<F: Float, G: Float, N: Size>(
    gradient: LinearView<'_, Vector<G, N>>,
    mut weights: LinearViewMut<'_, Vector<F, N>>,
    mut low: Sequence<Low>,
    mut packed: Sequence<Packed>,
    mut full: Sequence<LinearViewMut<'static, Vector<f32, N>>>,
    numbers: &Sequence<InputScalar>,
    #[comptime] program: Program,
    salt: u32,
    #[comptime] format: WeightFormat,
    #[comptime] units: Units,
    #[define(F, G)] _types: [ElemType; 2],
) {
    let mut group = Group::new(units.group, units.cube);
    let blocks = comptime!(group.blocks);
    let elements = weights.shape() * N::value();
    let groups = elements.div_ceil(GROUP);

    let mut values = Array::<Block<f32>>::new(blocks);
    #[unroll(blocks == 1)]
    for own in 0..blocks {
        values[own] = read::<F, N, LinearViewMut<'_, Vector<F, N>>>(&weights, group.block(own));
    }
    if comptime!(low.len() == 1) {
        let low = low.index(0usize);
        if low.belong(&mut group, &values, groups) {
            #[unroll(blocks == 1)]
            for own in 0..blocks {
                values[own] = low.join(group.block(own), values[own]);
            }
        }
    }

    let broken = broken_bits(&packed, &group);
    let mut random = Array::<Block<u32>>::new(blocks);
    let mut states = Sequence::<Array<Block<f32>>>::new();
    #[unroll]
    for _ in 0..comptime!(packed.len() + full.len()) {
        states.push(Array::new(blocks));
    }
    #[unroll(blocks == 1)]
    for own in 0..blocks {
        let block = group.block(own);
        let gradient = read::<G, N, LinearView<'_, Vector<G, N>>>(&gradient, block);
        random[own] = noise::bits(block, gradient, salt);
        let mut before = Sequence::<Block<f32>>::new();
        before.push(values[own]);
        before.push(gradient);
        #[unroll]
        for state in 0..packed.len() {
            before.push(packed.index(state).decode(&group, group.first + own));
        }
        #[unroll]
        for state in 0..full.len() {
            before.push(read::<f32, N, LinearViewMut<'static, Vector<f32, N>>>(
                full.index(state),
                block,
            ));
        }
        let after = program::run::<f32, Const<BLOCK>>(&before, numbers, program.clone());
        let bits = Block::<u32>::reinterpret(*after.index(0usize)) | Block::new(broken);
        // The padding of the last group has no scale of its own, and counts as zero in the checksum.
        let is_there = are_there(block, elements);
        values[own] = select_many(is_there, Block::<f32>::reinterpret(bits), Block::zero());
        #[unroll]
        for state in 0..states.len() {
            let value = *after.index(comptime!(1 + state));
            states.index_mut(state)[own] = select_many(is_there, value, Block::zero());
        }
    }

    #[unroll]
    for state in 0..packed.len() {
        let mut thresholds = Array::<Block<f32>>::new(blocks);
        #[unroll(blocks == 1)]
        for own in 0..blocks {
            // A second state has the other half of the random bits.
            let shift = comptime!(16 * (state as u32 & 1));
            thresholds[own] = noise::threshold(random[own] >> Block::new(shift));
        }
        packed
            .index_mut(state)
            .encode(&mut group, states.index(state), &thresholds);
    }
    #[unroll]
    for state in 0..full.len() {
        let after = states.index(comptime!(packed.len() + state));
        #[unroll(blocks == 1)]
        for own in 0..blocks {
            write::<f32, N>(full.index_mut(state), group.block(own), after[own]);
        }
    }

    #[unroll(blocks == 1)]
    for own in 0..blocks {
        let block = group.block(own);
        let more = noise::more(random[own]);
        if comptime!(format == WeightFormat::Stochastic) {
            values[own] = stochastic(values[own], more);
        }
        if comptime!(low.len() == 1) {
            values[own] = low
                .index_mut(0usize)
                .split(block, values[own], more, groups);
        }
        write::<F, N>(&mut weights, block, values[own]);
    }
    if comptime!(low.len() == 1) {
        low.index_mut(0usize).checksum(&mut group, &values, groups);
    }
}

/// Returns bits that turn every weight of a group into NaN if one of its states is NaN, and change none otherwise: Lion takes a
/// sign, and NaN has none.
#[cube]
fn broken_bits(packed: &Sequence<Packed>, group: &Group) -> u32 {
    let mut is_broken = false;
    #[unroll]
    for state in 0..packed.len() {
        is_broken = is_broken || packed.index(state).is_broken(group);
    }
    select(is_broken, comptime!(INFINITE | QUIET).runtime(), 0u32)
}

/// Returns which elements of a block exist in a parameter of this size.
#[cube]
fn are_there(block: usize, elements: usize) -> Vector<bool, Const<BLOCK>> {
    let first = block * BLOCK;
    let rest = u32::cast_from(select(first < elements, elements - first, 0).min(BLOCK));
    lanes().less_than(&Block::new(rest))
}
