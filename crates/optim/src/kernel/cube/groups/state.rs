//! Quantization by a [`CodeScheme`] on a device.

use burn_cubecl::cubecl;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::LinearViewMut;

use super::block::{BLOCKS, Block, packed, signed, unpacked};
use super::group::Group;
use crate::format::{CodeScheme, SquareRootCode};

/// Bits of infinity, above those of all finite magnitudes.
pub(super) const INFINITE: u32 = 0x7f80_0000;
pub(super) const MAGNITUDE: u32 = 0x7fff_ffff;
/// Bit that turns infinity into NaN.
pub(super) const QUIET: u32 = 0x0040_0000;
const LEAST_NORMAL: u32 = 0x0080_0000;
/// 2 to the power of 125.
const HUGE: u32 = 0x7e00_0000;
/// 2 to the power of -63.
const TINY: u32 = 0x2000_0000;

/// A state in codes.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Packed {
    codes: LinearViewMut<'static, u32>,
    scales: LinearViewMut<'static, f32>,
    #[cube(comptime)]
    scheme: CodeScheme,
}

#[cube]
impl Packed {
    /// Returns the numbers of a block, whose index counts within the group.
    pub(super) fn decode(&self, group: &Group, block: usize) -> Block<f32> {
        let scheme = comptime!(self.scheme);
        let bits = comptime!(scheme.width.bits() as u32);
        let word = if comptime!(bits == 8) {
            self.codes.read_checked(group.index * BLOCKS + block)
        } else {
            let half = comptime!(BLOCKS / 2);
            let word = self.codes.read_checked(group.index * half + block % half);
            word >> (u32::cast_from(block / half) * 4)
        };
        let codes = unpacked(word, bits);
        let root = if comptime!(scheme.root == SquareRootCode::Signed) {
            Block::<f32>::cast_from(Block::<i32>::reinterpret(signed(codes, bits)))
        } else {
            Block::<f32>::cast_from(codes) + Block::new(1.0)
        };
        let levels = comptime!(scheme.levels() as f32);
        let part = comptime!(1.0 / (levels * levels));
        let scale = self.scales.read_checked(group.index);
        let values = root * root.abs() * Block::new(part) * Block::new(scale);
        if comptime!(scheme.root == SquareRootCode::Signed) {
            values
        } else {
            // A device may flush smaller numbers to zero. NaN stays NaN.
            let least = select(
                u32::reinterpret(scale) > 0,
                comptime!(LEAST_NORMAL).runtime(),
                0u32,
            );
            let least = Block::new(f32::reinterpret(least));
            select_many(values.less_than(&least), least, values)
        }
    }

    /// Returns `true` if the codes of the group stand for NaN.
    pub(super) fn is_broken(&self, group: &Group) -> bool {
        let scale = u32::reinterpret(self.scales.read_checked(group.index));
        scale & MAGNITUDE > INFINITE
    }

    /// Writes the codes of the unit's blocks, and their scale.
    pub(super) fn encode(
        &mut self,
        group: &mut Group,
        values: &Array<Block<f32>>,
        thresholds: &Array<Block<f32>>,
    ) {
        let scheme = comptime!(self.scheme);
        let blocks = comptime!(group.blocks);
        let mut words = Array::<u32>::new(blocks);
        #[unroll(blocks == 1)]
        for own in 0..blocks {
            words[own] = largest(values[own]);
        }
        group.share(&words);
        let largest = group.max();
        let is_finite = largest < INFINITE;
        // Compilers refuse a constant that is NaN.
        let broken = f32::reinterpret(largest | comptime!(INFINITE | QUIET));
        let scale = select(is_finite, f32::reinterpret(largest), broken);
        // Devices need not support the inverses of the largest and of the least numbers.
        let small = select(
            largest < TINY,
            comptime!(1.0 / f32::from_bits(TINY)).runtime(),
            1.0,
        );
        let part = select(largest >= HUGE, 0.25, small);
        // Zeros, and numbers that a device flushes to zero, have no inverse.
        let number = select(is_finite, f32::reinterpret(largest) * part, 0.0);
        let is_there = number > 0.0;
        let inverse = select(is_there, 1.0 / select(is_there, number, 1.0), 0.0);
        #[unroll(blocks == 1)]
        for own in 0..blocks {
            let values = values[own] * Block::new(part);
            words[own] = packed(codes(values, thresholds[own], inverse, scheme));
        }
        if comptime!(scheme.width.bits() == 8) {
            #[unroll(blocks == 1)]
            for own in 0..blocks {
                self.codes.write_checked(group.block(own), words[own]);
            }
        } else {
            group.share(&words);
            let half = comptime!(BLOCKS / 2);
            #[unroll(blocks == 1)]
            for own in 0..blocks {
                let block = group.first + own;
                if block < half {
                    let word = group.word(block) | (group.word(block + half) << 4);
                    self.codes.write_checked(group.index * half + block, word);
                }
            }
        }
        if group.first == 0 {
            self.scales.write_checked(group.index, scale);
        }
    }
}

/// Returns the bits of the largest magnitude of a block.
#[cube]
fn largest(values: Block<f32>) -> u32 {
    let magnitudes = Block::<u32>::reinterpret(values) & Block::new(MAGNITUDE);
    let left = magnitudes.extract(0usize).max(magnitudes.extract(1usize));
    let right = magnitudes.extract(2usize).max(magnitudes.extract(3usize));
    left.max(right)
}

/// Returns the codes of a block, in the lowest bits.
#[cube]
fn codes(
    values: Block<f32>,
    threshold: Block<f32>,
    inverse: f32,
    #[comptime] scheme: CodeScheme,
) -> Block<u32> {
    let levels = comptime!(scheme.levels());
    let squares = comptime!(scheme.squares());
    let square = values.abs() * Block::new(inverse) * Block::new(squares);
    let root = Block::<i32>::cast_from(Vector::sqrt(square));
    let below = Block::<f32>::cast_from(root);
    let way = square - below * below;
    let least = threshold * (below + below + Block::new(1.0));
    let root = select_many(way.greater_than(&least), root + Block::new(1), root);
    let codes = if comptime!(scheme.root == SquareRootCode::Signed) {
        let root = root.clamp(Block::new(0), Block::new(levels));
        select_many(values.less_than(&Block::zero()), -root, root)
    } else {
        root.clamp(Block::new(1), Block::new(levels)) - Block::new(1)
    };
    let mask = comptime!((1u32 << scheme.width.bits()) - 1);
    Block::<u32>::reinterpret(codes) & Block::new(mask)
}
