//! The random numbers of [`Noise`](crate::format::Noise) on a device, bit for bit.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::block::{BLOCK, Block, lanes};

/// Returns random bits for the elements of a block.
#[cube]
pub(super) fn bits(block: usize, gradient: Block<f32>, salt: u32) -> Block<u32> {
    let first = u32::cast_from(block) * comptime!(BLOCK as u32);
    let index = Block::new(first) + lanes();
    let place = (index * Block::new(0x9e37_79b9)) ^ Block::<u32>::reinterpret(gradient);
    hash(place + Block::new(salt))
}

/// Derives more random bits.
#[cube]
pub(super) fn more(bits: Block<u32>) -> Block<u32> {
    hash(bits ^ Block::new(0x9e37_79b9))
}

/// Returns thresholds, uniform between 0 and 1.
#[cube]
pub(super) fn threshold(bits: Block<u32>) -> Block<f32> {
    let steps = Block::<f32>::cast_from(bits & Block::new(0xffff)) + Block::new(0.5);
    steps * Block::new(comptime!(1.0 / 65536.0))
}

#[cube]
fn hash(bits: Block<u32>) -> Block<u32> {
    let mut x = (bits ^ (bits >> Block::new(16))) * Block::new(0x7feb_352d);
    x = (x ^ (x >> Block::new(15))) * Block::new(0x846c_a68b);
    x ^ (x >> Block::new(16))
}
