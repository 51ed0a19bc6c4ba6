//! Groups of weights in bf16 with their residuals of one byte or two.

use burn::tensor::bf16;
use bytemuck::{cast_slice, cast_slice_mut};

use super::square_root_code::{GROUP, Values, whole, whole_mut};
use super::weight::{WeightFormat, checksum, join24, join32, split24, split32, stochastic};

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
pub(super) fn join(
    format: WeightFormat,
    high: &High,
    low: &[u8],
    group_checksum: u32,
    to: &mut Values,
) {
    let split;
    let high = if checksum(high) == group_checksum {
        high
    } else {
        // A residual of other weights counts as zero.
        let Some(other) = as_split(format, high, low, group_checksum) else {
            for lane in 0..GROUP {
                to[lane] = high[lane].to_f32();
            }
            return;
        };
        split = other;
        &split
    };
    if format == WeightFormat::Split24 {
        let low: &[i8; GROUP] = whole(cast_slice(low));
        for lane in 0..GROUP {
            to[lane] = join24(high[lane], low[lane]);
        }
    } else {
        let low: &[i16; GROUP] = whole(cast_slice(low));
        for lane in 0..GROUP {
            to[lane] = join32(high[lane], low[lane]);
        }
    }
}

/// Returns the original weights of a split group, if `high` are its weights in full precision, rounded by a cast. A cast rounds
/// a number halfway between two to the even one, and the split rounds it away from zero. Sixteen bits can't distinguish both
/// neighbours of an even number; the checksum can.
#[cold]
pub(super) fn as_split(
    format: WeightFormat,
    high: &High,
    low: &[u8],
    group_checksum: u32,
) -> Option<High> {
    // More candidates are those of other weights, or too many to try.
    const MOST: usize = 12;
    let is_halfway = |lane: usize| match format {
        WeightFormat::Split24 => low[lane] as i8 == i8::MIN,
        _ => low[2 * lane..][..2] == i16::MIN.to_ne_bytes(),
    };
    let is_even = |lane: usize| high[lane].to_bits() & 1 == 0;
    let lanes = (0..GROUP).filter(|lane| is_even(*lane) && is_halfway(*lane));
    let lanes: Vec<usize> = lanes.collect();
    let moved = |subset: u64| {
        let mut moved = *high;
        for (index, lane) in lanes.iter().enumerate() {
            let up = (subset >> index) as u16 & 1;
            moved[*lane] = bf16::from_bits(high[*lane].to_bits() + up);
        }
        (checksum(&moved) == group_checksum).then_some(moved)
    };
    // All lanes changed, if the weights are alike.
    let some = match lanes.len() {
        0 => return None,
        few @ 1..=MOST => 1..1 << few,
        _ => 0..0,
    };
    std::iter::once(u64::MAX).chain(some).find_map(moved)
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
pub(super) fn split(
    format: WeightFormat,
    values: &Values,
    random: &[u32; GROUP],
    low: &mut [u8],
) -> (High, u32) {
    let mut high = [bf16::ZERO; GROUP];
    if format == WeightFormat::Split24 {
        let low: &mut [i8; GROUP] = whole_mut(cast_slice_mut(low));
        for lane in 0..GROUP {
            (high[lane], low[lane]) = split24(values[lane], random[lane]);
        }
    } else {
        let low: &mut [i16; GROUP] = whole_mut(cast_slice_mut(low));
        for lane in 0..GROUP {
            (high[lane], low[lane]) = split32(values[lane]);
        }
    }
    (high, checksum(&high))
}
