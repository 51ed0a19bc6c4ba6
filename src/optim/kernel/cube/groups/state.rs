//! What [`Coding`] does, on a device.

use burn_cubecl::cubecl;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::LinearViewMut;

use super::block::{BLOCKS, Block, packed, signed, unpacked};
use super::group::Group;
use crate::optim::format::{Coding, Root};

/// Above those of all finite magnitudes.
pub(super) const INFINITE: u32 = 0x7f80_0000;
pub(super) const MAGNITUDE: u32 = 0x7fff_ffff;
/// Makes NaN of infinity.
pub(super) const QUIET: u32 = 0x0040_0000;
const LEAST_NORMAL: u32 = 0x0080_0000;
/// 2 to the power of 125.
const HUGE: u32 = 0x7e00_0000;

/// A state in codes.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Packed {
    codes: LinearViewMut<'static, u32>,
    scales: LinearViewMut<'static, f32>,
    #[cube(comptime)]
    coding: Coding,
}

#[cube]
impl Packed {
    /// The numbers of a block, counted within the group.
    pub(super) fn decode(&self, group: &Group, block: usize) -> Block<f32> {
        let coding = comptime!(self.coding);
        let bits = comptime!(coding.width.bits() as u32);
        let word = if comptime!(bits == 8) {
            self.codes.read_checked(group.index * BLOCKS + block)
        } else {
            let half = comptime!(BLOCKS / 2);
            let word = self.codes.read_checked(group.index * half + block % half);
            word >> (u32::cast_from(block / half) * 4)
        };
        let codes = unpacked(word, bits);
        let root = if comptime!(coding.root == Root::Signed) {
            Block::<f32>::cast_from(Block::<i32>::reinterpret(signed(codes, bits)))
        } else {
            Block::<f32>::cast_from(codes) + Block::new(1.0)
        };
        let levels = comptime!(coding.levels() as f32);
        let part = comptime!(1.0 / (levels * levels));
        let scale = self.scales.read_checked(group.index);
        root * root.abs() * Block::new(part) * Block::new(scale)
    }

    /// Whether the codes of the group stand for NaN.
    pub(super) fn is_broken(&self, group: &Group) -> bool {
        let scale = u32::reinterpret(self.scales.read_checked(group.index));
        scale & MAGNITUDE > INFINITE
    }

    /// Writes the codes of the unit's blocks, and their scale.
    pub(super) fn encode(
        &mut self,
        group: &mut Group,
        values: &Array<Block<f32>>,
        dithers: &Array<Block<f32>>,
    ) {
        let coding = comptime!(self.coding);
        let blocks = comptime!(group.blocks);
        let mut words = Array::<u32>::new(blocks);
        #[unroll(blocks == 1)]
        for own in 0..blocks {
            words[own] = largest(values[own]);
        }
        group.share(&words);
        let largest = group.max();
        let is_finite = largest < INFINITE;
        let is_normal = is_finite && largest >= LEAST_NORMAL;
        // Compilers refuse a constant that is NaN.
        let broken = f32::reinterpret(largest | comptime!(INFINITE | QUIET));
        let number = select(is_normal, f32::reinterpret(largest), 1.0);
        let normal = select(is_normal, number, 0.0);
        let scale = select(is_finite, normal, broken);
        // The inverse of the largest numbers is less than the least normal one, which a device may take for zero.
        let part = select(largest >= HUGE, 0.25, 1.0);
        let inverse = select(is_normal, 1.0 / (number * part), 0.0);
        #[unroll(blocks == 1)]
        for own in 0..blocks {
            let values = values[own] * Block::new(part);
            words[own] = packed(codes(values, dithers[own], inverse, coding));
        }
        if comptime!(coding.width.bits() == 8) {
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

/// The bits of the largest magnitude of a block.
#[cube]
fn largest(values: Block<f32>) -> u32 {
    let magnitudes = Block::<u32>::reinterpret(values) & Block::new(MAGNITUDE);
    let left = magnitudes.extract(0usize).max(magnitudes.extract(1usize));
    let right = magnitudes.extract(2usize).max(magnitudes.extract(3usize));
    left.max(right)
}

/// The codes of a block, in the lowest bits.
#[cube]
fn codes(
    values: Block<f32>,
    dither: Block<f32>,
    inverse: f32,
    #[comptime] coding: Coding,
) -> Block<u32> {
    let levels = comptime!(coding.levels());
    let magnitude = values.abs() * Block::new(inverse);
    let root = Block::new(comptime!(levels as f32)) * Vector::sqrt(magnitude);
    let codes = if comptime!(coding.root == Root::Signed) {
        let code = nearest(root + dither, levels);
        select_many(values.less_than(&Block::zero()), -code, code)
    } else {
        nearest(root - Block::new(1.0) + dither, comptime!(levels - 1))
    };
    let mask = comptime!((1u32 << coding.width.bits()) - 1);
    Block::<u32>::reinterpret(codes) & Block::new(mask)
}

/// The nearest integers of numbers above -2, between 0 and `most`.
#[cube]
fn nearest(values: Block<f32>, #[comptime] most: i32) -> Block<i32> {
    let codes = Block::<i32>::cast_from(values + Block::new(2.5)) - Block::new(2);
    codes.clamp(Block::new(0), Block::new(most))
}
