//! Groups of weights in bf16 with their residuals.

use burn::tensor::bf16;
use bytemuck::{cast_slice, cast_slice_mut};

use super::square_root_code::{GROUP, Values, whole, whole_mut};
use super::weight::{checksum, join24, split24, stochastic};

/// The weights of a group in bf16; the last group is padded with zeros.
pub(super) type High = [bf16; GROUP];

/// Returns the weights of a group, which may be the last.
#[inline(always)]
pub(super) fn high(weights: &[bf16]) -> High {
    match weights.first_chunk() {
        Some(all) => *all,
        None => {
            let mut high = [bf16::ZERO; GROUP];
            high[..weights.len()].copy_from_slice(weights);
            high
        }
    }
}

/// Writes the weights of a group.
#[inline(always)]
pub(super) fn put(high: &High, weights: &mut [bf16]) {
    match weights.first_chunk_mut() {
        Some(all) => *all = *high,
        None => weights.copy_from_slice(&high[..weights.len()]),
    }
}

/// Joins the trained weights of a group from `high`, the weights in bf16, and the residual.
#[inline(always)]
pub(super) fn join(high: &High, low: &[u8], group_checksum: u32, to: &mut Values) {
    let low: &[i8; GROUP] = whole(cast_slice(low));
    // A residual of other weights counts as zero.
    let belong = checksum(high) == group_checksum;
    for lane in 0..GROUP {
        to[lane] = join24(high[lane], if belong { low[lane] } else { 0 });
    }
}

/// Rounds the weights of a group up or down at random.
#[inline(always)]
pub(super) fn rounded(values: &Values, random: &[u32; GROUP]) -> High {
    let mut high = [bf16::ZERO; GROUP];
    for lane in 0..GROUP {
        high[lane] = stochastic(values[lane], random[lane]);
    }
    high
}

/// Splits the trained weights of a group. Returns the weights in bf16 and their checksum.
#[inline(always)]
pub(super) fn split(values: &Values, random: &[u32; GROUP], low: &mut [u8]) -> (High, u32) {
    let mut high = [bf16::ZERO; GROUP];
    let low: &mut [i8; GROUP] = whole_mut(cast_slice_mut(low));
    for lane in 0..GROUP {
        (high[lane], low[lane]) = split24(values[lane], random[lane]);
    }
    (high, checksum(&high))
}
