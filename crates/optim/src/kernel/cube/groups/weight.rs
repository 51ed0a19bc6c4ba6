//! Weights in a [`WeightFormat`](crate::format::WeightFormat) on a device.

use burn_cubecl::cubecl;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::LinearViewMut;

use super::block::{BLOCK, BLOCKS, Block, packed, signed, unpacked};
use super::group::Group;
use super::state::{INFINITE, MAGNITUDE, QUIET};

/// Rounded weights, as numbers that bf16 has, and their residuals.
pub(super) type Rounded = (Block<f32>, Block<u32>);

/// The residual of a parameter.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Low {
    /// Residuals of all groups, then the checksums.
    words: LinearViewMut<'static, u32>,
}

#[cube]
impl Low {
    /// Returns `true` if the residual of a group belongs to these weights in bf16, out of `groups` groups.
    pub(super) fn belong(
        &self,
        group: &mut Group,
        weights: &Array<Block<f32>>,
        groups: usize,
    ) -> bool {
        let checksum = checksum(group, weights);
        checksum == self.words.read_checked(mark_place(group.index, groups))
    }

    /// Joins a block of weights in bf16 with their residuals.
    pub(super) fn join(&self, block: usize, weights: Block<f32>) -> Block<f32> {
        let bytes = unpacked(self.words.read_checked(block), 8u32);
        let low = signed(bytes, 8u32) << Block::new(8);
        let bits = Block::<u32>::reinterpret(weights) + low;
        Block::<f32>::reinterpret(bits)
    }

    /// Stores the residuals of a block of trained weights. Returns the weights in bf16.
    pub(super) fn split(
        &mut self,
        block: usize,
        weights: Block<f32>,
        random: Block<u32>,
        groups: usize,
    ) -> Block<f32> {
        let (high, low) = split24(weights, random);
        // The checksums follow the residuals.
        if block < groups * BLOCKS {
            self.words.write_checked(block, packed(low));
        }
        high
    }

    /// Stores the checksum of the weights in bf16 of a group.
    pub(super) fn checksum(
        &mut self,
        group: &mut Group,
        weights: &Array<Block<f32>>,
        groups: usize,
    ) {
        let checksum = checksum(group, weights);
        if group.first == 0 {
            let place = mark_place(group.index, groups);
            self.words.write_checked(place, checksum);
        }
    }
}

/// Returns the index of the checksum of a group.
#[cube]
fn mark_place(group: usize, groups: usize) -> usize {
    groups * BLOCKS + group
}

/// Computes the checksum of the weights of a group, in bf16.
#[cube]
fn checksum(group: &mut Group, weights: &Array<Block<f32>>) -> u32 {
    let blocks = comptime!(group.blocks);
    let mut words = Array::<u32>::new(blocks);
    let mut factor = factor(group.first);
    #[unroll(blocks == 1)]
    for own in 0..blocks {
        let bits = Block::<u32>::reinterpret(weights[own]) >> Block::new(16);
        let mut sum = 0u32;
        #[unroll]
        for lane in 0..BLOCK {
            sum += bits.extract(lane) * factor;
            factor *= 0x2c1b_3c6d;
        }
        words[own] = sum;
    }
    group.share(&words);
    group.sum()
}

/// Returns the factor of the first element of a block in a checksum.
#[cube]
fn factor(block: usize) -> u32 {
    let block = u32::cast_from(block);
    let mut factor = 0x9e37_79b9u32;
    // Four steps are a block.
    #[unroll]
    for bit in 0..4u32 {
        let power = comptime!(0x2c1b_3c6d_u32.wrapping_pow(4 << bit));
        factor *= select((block >> bit) & 1 == 1, power.runtime(), 1u32);
    }
    factor
}

/// Rounds weights up or down at random.
#[cube]
pub(super) fn stochastic(values: Block<f32>, random: Block<u32>) -> Block<f32> {
    let bits = Block::<u32>::reinterpret(values);
    let rounded = bits + (random & Block::new(0xffff));
    let kept = select_many(is_finite(bits), rounded, quiet(bits));
    Block::<f32>::reinterpret(kept & Block::new(0xffff_0000))
}

/// Splits weights; for NaN, the residual is zero.
#[cube]
fn split24(values: Block<f32>, random: Block<u32>) -> Rounded {
    let bits = Block::<u32>::reinterpret(values);
    let rounded = (bits + (random & Block::new(0xff))) >> Block::new(8);
    let rounded = select_many(is_finite(bits), rounded, quiet(bits) >> Block::new(8));
    // Not halfway between two numbers of bf16: a cast would round it differently.
    let neighbor = rounded + ((random >> Block::new(7)) & Block::new(2)) - Block::new(1);
    let is_halfway = ((rounded & Block::new(0xff)) ^ Block::new(0x80)).less_than(&Block::new(1));
    let rounded = select_many(is_halfway, neighbor, rounded);
    let high = (rounded + Block::new(0x80)) >> Block::new(8);
    let low = (rounded - (high << Block::new(8))) & Block::new(0xff);
    let is_number = (bits & Block::new(MAGNITUDE)).less_equal(&Block::new(INFINITE));
    let high = select_many(is_number, high, quiet(bits) >> Block::new(16));
    let low = select_many(is_number, low, Block::new(0));
    (Block::<f32>::reinterpret(high << Block::new(16)), low)
}

#[cube]
fn is_finite(bits: Block<u32>) -> Vector<bool, Const<BLOCK>> {
    (bits & Block::new(MAGNITUDE)).less_than(&Block::new(INFINITE))
}

/// Returns the bits unchanged; for NaN, only the upper half stays.
#[cube]
fn quiet(bits: Block<u32>) -> Block<u32> {
    let is_nan = (bits & Block::new(MAGNITUDE)).greater_than(&Block::new(INFINITE));
    select_many(is_nan, bits | Block::new(QUIET), bits)
}
