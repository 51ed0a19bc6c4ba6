use burn::tensor::{bf16, f16};

use super::super::format::{Coding, GROUP, LowSlice, Values, WeightFormat, nearest, stochastic};

/// Weights as they are stored.
pub(super) enum Weights<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    Plain(&'a mut [bf16]),
    Stochastic(&'a mut [bf16]),
    Split(&'a mut [bf16], LowSlice<'a>),
}

/// An optimizer state as it is stored.
pub(super) enum StateSlice<'a> {
    Full(&'a mut [f32]),
    Packed {
        coding: Coding,
        codes: &'a mut [u8],
        scales: &'a mut [f32],
    },
}

impl<'a> Weights<'a> {
    /// Weights in bf16 with the words of what they lack.
    pub(super) fn in_format(
        format: WeightFormat,
        high: &'a mut [bf16],
        words: &'a mut [u32],
    ) -> Self {
        match format {
            WeightFormat::Plain => Self::Plain(high),
            WeightFormat::Stochastic => Self::Stochastic(high),
            WeightFormat::Split24 | WeightFormat::Split32 => {
                let low = LowSlice::of(words, format, high.len());
                Self::Split(high, low)
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(weights) => weights.len(),
            Self::F16(weights) => weights.len(),
            Self::Plain(weights) | Self::Stochastic(weights) => weights.len(),
            Self::Split(high, _) => high.len(),
        }
    }

    #[cfg(feature = "flex")]
    pub(super) fn split_at(self, middle: usize) -> [Self; 2] {
        fn both<'a, T, R>(
            slice: &'a mut [T],
            middle: usize,
            make: impl Fn(&'a mut [T]) -> R,
        ) -> [R; 2] {
            let (left, right) = slice.split_at_mut(middle);
            [make(left), make(right)]
        }
        match self {
            Self::F32(weights) => both(weights, middle, Self::F32),
            Self::F16(weights) => both(weights, middle, Self::F16),
            Self::Plain(weights) => both(weights, middle, Self::Plain),
            Self::Stochastic(weights) => both(weights, middle, Self::Stochastic),
            Self::Split(high, low) => {
                let (left, right) = high.split_at_mut(middle);
                let [low_left, low_right] = low.split_at(middle / GROUP);
                [Self::Split(left, low_left), Self::Split(right, low_right)]
            }
        }
    }

    #[inline(always)]
    pub(super) fn load(&self, start: usize, length: usize) -> Values {
        let mut values = [0.0; GROUP];
        let end = start + length;
        match self {
            Self::F32(weights) => values[..length].copy_from_slice(&weights[start..end]),
            Self::F16(weights) => {
                for (value, weight) in values.iter_mut().zip(&weights[start..end]) {
                    *value = weight.to_f32();
                }
            }
            Self::Plain(weights) | Self::Stochastic(weights) => {
                for (value, weight) in values.iter_mut().zip(&weights[start..end]) {
                    *value = weight.to_f32();
                }
            }
            Self::Split(high, low) => values = low.load(start / GROUP, &high[start..end]),
        }
        values
    }

    #[inline(always)]
    pub(super) fn store(
        &mut self,
        start: usize,
        length: usize,
        values: &Values,
        random: &[u32; GROUP],
    ) {
        let end = start + length;
        match self {
            Self::F32(weights) => weights[start..end].copy_from_slice(&values[..length]),
            Self::F16(weights) => {
                for (weight, value) in weights[start..end].iter_mut().zip(values) {
                    *weight = f16::from_f32(*value);
                }
            }
            Self::Plain(weights) => {
                for (weight, value) in weights[start..end].iter_mut().zip(values) {
                    *weight = nearest(*value);
                }
            }
            Self::Stochastic(weights) => {
                let values = values.iter().zip(random);
                for (weight, (value, random)) in weights[start..end].iter_mut().zip(values) {
                    *weight = stochastic(*value, *random);
                }
            }
            Self::Split(high, low) => {
                low.store(start / GROUP, &mut high[start..end], values, random);
            }
        }
    }
}

impl StateSlice<'_> {
    #[cfg(feature = "flex")]
    pub(super) fn split_at(self, middle: usize) -> [Self; 2] {
        match self {
            Self::Full(state) => {
                let (left, right) = state.split_at_mut(middle);
                [Self::Full(left), Self::Full(right)]
            }
            Self::Packed {
                coding,
                codes,
                scales,
            } => {
                let middle = middle / GROUP;
                let (codes_left, codes_right) =
                    codes.split_at_mut(middle * coding.width.group_bytes());
                let (scales_left, scales_right) = scales.split_at_mut(middle);
                let half = |codes, scales| Self::Packed {
                    coding,
                    codes,
                    scales,
                };
                [
                    half(codes_left, scales_left),
                    half(codes_right, scales_right),
                ]
            }
        }
    }

    #[inline(always)]
    pub(super) fn load(&self, group: usize, length: usize) -> Values {
        match self {
            Self::Full(state) => {
                let mut values = [0.0; GROUP];
                let start = group * GROUP;
                values[..length].copy_from_slice(&state[start..start + length]);
                values
            }
            Self::Packed {
                coding,
                codes,
                scales,
            } => {
                let bytes = coding.width.group_bytes();
                let codes = &codes[group * bytes..(group + 1) * bytes];
                coding.decode(codes, scales[group])
            }
        }
    }

    /// Whether the codes of a group stand for NaN.
    #[inline(always)]
    pub(super) fn is_broken(&self, group: usize) -> bool {
        match self {
            Self::Full(_) => false,
            Self::Packed { scales, .. } => scales[group].is_nan(),
        }
    }

    #[inline(always)]
    pub(super) fn store(
        &mut self,
        group: usize,
        length: usize,
        values: &Values,
        thresholds: &Values,
    ) {
        match self {
            Self::Full(state) => {
                let start = group * GROUP;
                state[start..start + length].copy_from_slice(&values[..length]);
            }
            Self::Packed {
                coding,
                codes,
                scales,
            } => {
                let bytes = coding.width.group_bytes();
                let codes = &mut codes[group * bytes..(group + 1) * bytes];
                scales[group] = coding.encode(values, thresholds, codes);
            }
        }
    }
}
