//! What [`WeightFormat`] keeps of a weight, on a device.

use burn_cubecl::cubecl;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::LinearViewMut;

use super::block::{BLOCK, BLOCKS, Block, packed, signed, unpacked};
use super::group::Group;
use super::state::{INFINITE, MAGNITUDE, QUIET};
use crate::format::WeightFormat;

/// Weights that are rounded, as numbers that bf16 has, and what they lack.
pub(super) type Rounded = (Block<f32>, Block<u32>);

/// The low bits of a parameter.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Low {
    /// Those of all groups, then the marks.
    words: LinearViewMut<'static, u32>,
    #[cube(comptime)]
    format: WeightFormat,
}

#[cube]
impl Low {
    /// Whether the low bits of a group are those of these weights in bf16, of so many groups.
    pub(super) fn belong(
        &self,
        group: &mut Group,
        weights: &Array<Block<f32>>,
        groups: usize,
    ) -> bool {
        let mark = mark(group, weights);
        mark == self
            .words
            .read_checked(mark_place(group.index, groups, self.format))
    }

    /// A block of weights in bf16 with what they lack.
    pub(super) fn join(&self, block: usize, weights: Block<f32>) -> Block<f32> {
        let low = if comptime!(self.format == WeightFormat::Split24) {
            let bytes = unpacked(self.words.read_checked(block), 8u32);
            signed(bytes, 8u32) << Block::new(8)
        } else {
            let left = self.words.read_checked(2 * block);
            let right = self.words.read_checked(2 * block + 1);
            signed(halves(left, right), 16u32)
        };
        let bits = Block::<u32>::reinterpret(weights) + low;
        Block::<f32>::reinterpret(bits)
    }

    /// Keeps what a block of trained weights lacks in bf16, in which it returns them.
    pub(super) fn split(
        &mut self,
        block: usize,
        weights: Block<f32>,
        random: Block<u32>,
        groups: usize,
    ) -> Block<f32> {
        // Behind the low bits are the marks.
        let is_there = block < groups * BLOCKS;
        if comptime!(self.format == WeightFormat::Split24) {
            let (high, low) = split24(weights, random);
            if is_there {
                self.words.write_checked(block, packed(low));
            }
            high
        } else {
            let (high, low) = split32(weights);
            if is_there {
                let left = low.extract(0usize) | (low.extract(1usize) << 16);
                let right = low.extract(2usize) | (low.extract(3usize) << 16);
                self.words.write_checked(2 * block, left);
                self.words.write_checked(2 * block + 1, right);
            }
            high
        }
    }

    /// Notes to which weights in bf16 the low bits of a group belong.
    pub(super) fn mark(&mut self, group: &mut Group, weights: &Array<Block<f32>>, groups: usize) {
        let mark = mark(group, weights);
        if group.first == 0 {
            let place = mark_place(group.index, groups, self.format);
            self.words.write_checked(place, mark);
        }
    }
}

/// Where the mark of a group lies.
#[cube]
fn mark_place(group: usize, groups: usize, #[comptime] format: WeightFormat) -> usize {
    groups * comptime!(BLOCKS * format.low_bytes()) + group
}

/// The 16 bits of four elements from two words.
#[cube]
fn halves(left: u32, right: u32) -> Block<u32> {
    let mut bits = Block::<u32>::zero();
    bits.insert(0usize, left & 0xffff);
    bits.insert(1usize, left >> 16);
    bits.insert(2usize, right & 0xffff);
    bits.insert(3usize, right >> 16);
    bits
}

/// The mark of the weights of a group, in bf16.
#[cube]
fn mark(group: &mut Group, weights: &Array<Block<f32>>) -> u32 {
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

/// What the first element of a block counts in a mark.
#[cube]
fn factor(block: usize) -> u32 {
    let block = u32::cast_from(block);
    let mut factor = 0x9e37_79b9u32;
    // Four steps make up a block.
    #[unroll]
    for bit in 0..4u32 {
        let power = comptime!(0x2c1b_3c6d_u32.wrapping_pow(4 << bit));
        factor *= select((block >> bit) & 1 == 1, power.runtime(), 1u32);
    }
    factor
}

/// Weights rounded up or down at random.
#[cube]
pub(super) fn stochastic(values: Block<f32>, random: Block<u32>) -> Block<f32> {
    let bits = Block::<u32>::reinterpret(values);
    let rounded = bits + (random & Block::new(0xffff));
    let kept = select_many(is_finite(bits), rounded, quiet(bits));
    Block::<f32>::reinterpret(kept & Block::new(0xffff_0000))
}

#[cube]
fn split24(values: Block<f32>, random: Block<u32>) -> Rounded {
    let bits = Block::<u32>::reinterpret(values);
    let rounded = (bits + (random & Block::new(0xff))) >> Block::new(8);
    let rounded = select_many(is_finite(bits), rounded, quiet(bits) >> Block::new(8));
    let high = (rounded + Block::new(0x80)) >> Block::new(8);
    let low = rounded - (high << Block::new(8));
    numbers(bits, high, low & Block::new(0xff))
}

#[cube]
fn split32(values: Block<f32>) -> Rounded {
    let bits = Block::<u32>::reinterpret(values);
    let high = (bits + Block::new(0x8000)) >> Block::new(16);
    let low = bits - (high << Block::new(16));
    numbers(bits, high, low & Block::new(0xffff))
}

/// What was split, unless it is NaN: then it lacks nothing.
#[cube]
fn numbers(bits: Block<u32>, high: Block<u32>, low: Block<u32>) -> Rounded {
    let is_number = (bits & Block::new(MAGNITUDE)).less_equal(&Block::new(INFINITE));
    let high = select_many(is_number, high, quiet(bits) >> Block::new(16));
    let low = select_many(is_number, low, Block::new(0));
    (Block::<f32>::reinterpret(high << Block::new(16)), low)
}

#[cube]
fn is_finite(bits: Block<u32>) -> Vector<bool, Const<BLOCK>> {
    (bits & Block::new(MAGNITUDE)).less_than(&Block::new(INFINITE))
}

/// The bits as they are; of NaN, the upper half alone says so.
#[cube]
fn quiet(bits: Block<u32>) -> Block<u32> {
    let is_nan = (bits & Block::new(MAGNITUDE)).greater_than(&Block::new(INFINITE));
    select_many(is_nan, bits | Block::new(QUIET), bits)
}
