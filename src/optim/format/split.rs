//! Groups of weights in bf16 and what they lack: a byte for each, or two.

use burn::tensor::bf16;
use bytemuck::{Pod, cast_slice};

use super::root::{GROUP, Values};
use super::weight::{WeightFormat, join24, join32, mark, split24, split32, stochastic};

/// The weights of a group in bf16; what a last one lacks is zero.
pub(super) type High = [bf16; GROUP];

/// Those of a group, which may be the last.
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

/// Puts them in their place.
#[inline(always)]
pub(super) fn put(high: &High, weights: &mut [bf16]) {
    match weights.first_chunk_mut() {
        Some(all) => *all = *high,
        None => weights.copy_from_slice(&high[..weights.len()]),
    }
}

/// The trained weights of a group, of which `high` are those in bf16.
#[inline(always)]
pub(super) fn joined(format: WeightFormat, high: &High, low: &[u8], marked: u32) -> Values {
    if mark(high) == marked {
        join(format, high, low)
    } else {
        others(format, high, low, marked)
    }
}

/// The same of weights that are not those that were split.
#[cold]
fn others(format: WeightFormat, high: &High, low: &[u8], marked: u32) -> Values {
    match as_split(format, high, low, marked) {
        Some(split) => join(format, &split, low),
        None => high.map(bf16::to_f32),
    }
}

#[inline(always)]
fn join(format: WeightFormat, high: &High, low: &[u8]) -> Values {
    let mut values = [0.0; GROUP];
    if format == WeightFormat::Split24 {
        let low = group_of::<i8>(low);
        for lane in 0..GROUP {
            values[lane] = join24(high[lane], low[lane]);
        }
    } else {
        let low = group_of::<i16>(low);
        for lane in 0..GROUP {
            values[lane] = join32(high[lane], low[lane]);
        }
    }
    values
}

#[inline(always)]
fn group_of<T: Pod>(low: &[u8]) -> &[T; GROUP] {
    cast_slice(low).first_chunk().expect("a group has as many")
}

/// The weights of a group that were split, if `high` are those in full precision, rounded by a cast: what lies in
/// the middle between two numbers goes to the even one there, and away from zero here. (Sixteen bits can't tell
/// both neighbours of an even number from each other.) Which of them it was, the mark tells.
pub(super) fn as_split(format: WeightFormat, high: &High, low: &[u8], marked: u32) -> Option<High> {
    // More are those of other weights, or too many to try.
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
        (mark(&moved) == marked).then_some(moved)
    };
    // All of them where weights are alike.
    let some = match lanes.len() {
        0 => return None,
        few @ 1..=MOST => 1..1 << few,
        _ => 0..0,
    };
    std::iter::once(u64::MAX).chain(some).find_map(moved)
}

/// The weights of a group, rounded up or down at random.
#[inline(always)]
pub(super) fn rounded(values: &Values, random: &[u32; GROUP]) -> High {
    let mut high = [bf16::ZERO; GROUP];
    for lane in 0..GROUP {
        high[lane] = stochastic(values[lane], random[lane]);
    }
    high
}

/// Splits the trained weights of a group into those in bf16, with their mark, and what these lack.
#[inline(always)]
pub(super) fn split(
    format: WeightFormat,
    values: &Values,
    random: &[u32; GROUP],
    low: &mut [u8],
) -> (High, u32) {
    let mut high = [bf16::ZERO; GROUP];
    if format == WeightFormat::Split24 {
        let mut lacks = [0_i8; GROUP];
        for lane in 0..GROUP {
            (high[lane], lacks[lane]) = split24(values[lane], random[lane]);
        }
        low.copy_from_slice(cast_slice(&lacks));
    } else {
        let mut lacks = [0_i16; GROUP];
        for lane in 0..GROUP {
            (high[lane], lacks[lane]) = split32(values[lane]);
        }
        low.copy_from_slice(cast_slice(&lacks));
    }
    (high, mark(&high))
}
