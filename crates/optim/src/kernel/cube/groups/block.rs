use burn_cubecl::cubecl;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::Coords1d;
use cubecl::std::tensor::layout::linear::LinearViewMut;
use cubecl::std::tensor::{ViewOperations, ViewOperationsExpand};

use crate::format::GROUP;

/// Elements of a block: their codes of 8 bits are a word.
pub(super) const BLOCK: usize = 4;
/// Blocks of a group.
pub(super) const BLOCKS: usize = GROUP / BLOCK;

/// A part of a group.
pub(super) type Block<T> = Vector<T, Const<BLOCK>>;

/// Reads the elements of a block; missing ones are zero.
#[cube]
pub(super) fn read<F: Float, N: Size, V: ViewOperations<Vector<F, N>, Coords1d>>(
    from: &V,
    block: usize,
) -> Block<f32> {
    let size = N::value().comptime();
    if comptime!(size == BLOCK) {
        Block::cast_from(from.read_checked(block))
    } else {
        let mut values = Block::<f32>::zero();
        #[unroll]
        for lane in 0..BLOCK {
            let value = from.read_checked(block * BLOCK + lane);
            values.insert(lane, f32::cast_from(value));
        }
        values
    }
}

/// Writes the existing elements of a block.
#[cube]
pub(super) fn write<F: Float, N: Size>(
    to: &mut LinearViewMut<'_, Vector<F, N>>,
    block: usize,
    values: Block<f32>,
) {
    let size = N::value().comptime();
    if comptime!(size == BLOCK) {
        to.write_checked(block, Vector::cast_from(values));
    } else {
        #[unroll]
        for lane in 0..BLOCK {
            to.write_checked(
                block * BLOCK + lane,
                Vector::cast_from(values.extract(lane)),
            );
        }
    }
}

/// Returns the indices of the elements of a block.
#[cube]
pub(super) fn lanes() -> Block<u32> {
    let mut lanes = Block::<u32>::zero();
    #[unroll]
    for lane in 0..BLOCK {
        lanes.insert(lane, comptime!(lane as u32).runtime());
    }
    lanes
}

/// Packs a byte of each element into a word, the first in its lowest bits.
#[cube]
pub(super) fn packed(bytes: Block<u32>) -> u32 {
    let mut word = 0u32;
    #[unroll]
    for lane in 0..BLOCK {
        word |= (bytes.extract(lane) & 0xff) << comptime!(8 * lane as u32);
    }
    word
}

/// Returns the lowest `width` bits of each element's byte, with zeros above.
#[cube]
pub(super) fn unpacked(word: u32, #[comptime] width: u32) -> Block<u32> {
    let shifted = Block::new(word) >> (lanes() * Block::new(8));
    shifted & Block::new(comptime!((1u32 << width) - 1))
}

/// Converts numbers of `width` bits in two's complement to signed numbers.
#[cube]
pub(super) fn signed(bits: Block<u32>, #[comptime] width: u32) -> Block<u32> {
    // Not by shifts: CubeCL's LLVM ignores the sign of a reinterpreted number.
    let sign = bits & Block::new(comptime!(1u32 << (width - 1)));
    bits - (sign << Block::new(1))
}
