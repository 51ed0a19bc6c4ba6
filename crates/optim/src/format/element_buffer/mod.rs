//! Buffers of encoded elements, which are decoded to f32 and encoded again.

use super::super::rule::{Loop, vectorized};
use super::noise::Dither;
use super::split;
use super::square_root_code::{CodeScheme, GROUP, Scale};
use super::weight::{WeightFormat, nearest};
use super::widen::Widen;
use burn::tensor::{DType, f16};
use bytemuck::{cast_slice, cast_slice_mut};

/// Encoding of elements in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ElementEncoding {
    /// Floats of this type, rounded to the nearest.
    Floats(DType),
    /// Floats in bf16, with the residual of the format.
    Weights(WeightFormat),
    /// Codes, with a scale in f32 for every group.
    Codes(CodeScheme),
}

impl ElementEncoding {
    /// Returns the bytes of a group's floats and of its words, and its number of checksums.
    fn group(self) -> [usize; 3] {
        match self {
            Self::Floats(dtype) => [GROUP * dtype.size(), 0, 0],
            Self::Weights(format) => {
                let low = format.residual_bytes();
                [GROUP * 2, GROUP * low, usize::from(low > 0)]
            }
            Self::Codes(scheme) => [4, scheme.width.group_bytes(), 0],
        }
    }

    /// Returns the number of 32-bit words that `elements` elements need in addition to their floats.
    pub(crate) fn words(self, elements: usize) -> usize {
        let [_, bytes, checksums] = self.group();
        elements.div_ceil(GROUP) * (bytes / 4 + checksums)
    }

    /// Decodes `elements` numbers to f32 from their floats and words.
    pub(crate) fn decode(self, floats: &mut [u8], words: &mut [u32], elements: usize) -> Vec<f32> {
        let mut numbers = vec![0.0; elements.next_multiple_of(GROUP)];
        ElementBuffer::new(self, floats, words).read(&mut numbers);
        numbers.truncate(elements);
        numbers
    }

    /// Encodes these numbers, rounded to the nearest, into `floats`. Returns the words.
    pub(crate) fn encode(self, mut numbers: Vec<f32>, floats: &mut [u8]) -> Vec<u32> {
        let mut words = vec![0; self.words(numbers.len())];
        numbers.resize(numbers.len().next_multiple_of(GROUP), 0.0);
        ElementBuffer::new(self, floats, &mut words).write(&numbers, Dither::ToTheNearest);
        words
    }
}

/// Encoded elements in memory, from the start of a group on.
pub(crate) struct ElementBuffer<'a> {
    encoding: ElementEncoding,
    /// Elements, or scales of groups.
    pub(crate) floats: &'a mut [u8],
    /// Residuals or codes of whole groups.
    words: &'a mut [u8],
    /// Checksum of the weights of each group that has a residual.
    checksums: &'a mut [u32],
}

impl<'a> ElementBuffer<'a> {
    /// Creates a buffer. `words` are the residuals of all groups, then their checksums; or codes.
    pub(crate) fn new(
        encoding: ElementEncoding,
        floats: &'a mut [u8],
        words: &'a mut [u32],
    ) -> Self {
        let checksums = match encoding {
            ElementEncoding::Weights(format) if format.residual_bytes() > 0 => {
                floats.len().div_ceil(GROUP * 2)
            }
            _ => 0,
        };
        let (words, checksums) = words.split_at_mut(words.len() - checksums);
        Self {
            encoding,
            floats,
            words: cast_slice_mut(words),
            checksums,
        }
    }

    /// Splits off the elements of `groups` groups.
    pub(crate) fn take(&mut self, groups: usize) -> Self {
        fn first<'a, T>(all: &mut &'a mut [T], length: usize) -> &'a mut [T] {
            let length = length.min(all.len());
            all.split_off_mut(..length)
                .expect("the buffer is long enough")
        }
        let [floats, words, checksums] = self.encoding.group();
        Self {
            encoding: self.encoding,
            floats: first(&mut self.floats, groups * floats),
            words: first(&mut self.words, groups * words),
            checksums: first(&mut self.checksums, groups * checksums),
        }
    }

    /// Returns `true` if elements are rounded at random.
    pub(crate) fn is_dithered(&self) -> bool {
        use WeightFormat::{Split24, Stochastic};
        matches!(
            self.encoding,
            ElementEncoding::Weights(Stochastic | Split24) | ElementEncoding::Codes(_)
        )
    }

    /// Returns `true` if the elements are stored in f32.
    pub(crate) fn are_numbers(&self) -> bool {
        matches!(self.encoding, ElementEncoding::Floats(DType::F32))
    }

    /// Sets the flags of groups whose codes stand for NaN.
    pub(crate) fn broken(&self, groups: &mut [bool]) {
        if let ElementEncoding::Codes(_) = self.encoding {
            for (broken, scale) in groups.iter_mut().zip(cast_slice::<u8, f32>(self.floats)) {
                *broken |= scale.is_nan();
            }
        }
    }

    /// Returns all `length` elements as numbers in f32: in place, or in `numbers`, which holds whole groups.
    pub(crate) fn open<'s>(&'s mut self, numbers: &'s mut [f32], length: usize) -> &'s mut [f32] {
        if self.are_numbers() {
            return cast_slice_mut(self.floats);
        }
        self.read(numbers);
        &mut numbers[..length]
    }

    /// Writes back `length` opened `numbers`, unless they are in place.
    pub(crate) fn close(&mut self, numbers: &mut [f32], length: usize, dither: Dither<'_>) {
        if !self.are_numbers() {
            // The padding of the last group has no scale of its own.
            let numbers = &mut numbers[..length.next_multiple_of(GROUP)];
            numbers[length..].fill(0.0);
            self.write(numbers, dither);
        }
    }

    /// Decodes all elements.
    pub(crate) fn read(&self, numbers: &mut [f32]) {
        if !self.floats.is_empty() {
            vectorized(Read(self, numbers));
        }
    }

    /// Encodes these numbers over all elements: whole groups, padded with zeros.
    pub(crate) fn write(&mut self, numbers: &[f32], dither: Dither<'_>) {
        if !self.floats.is_empty() {
            vectorized(Write(self, numbers, dither));
        }
    }
}

// These loops are compiled for the instruction set of the processor, so they contain no closures.

struct Read<'a, 'c>(&'a ElementBuffer<'c>, &'a mut [f32]);

impl Loop for Read<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(buffer, numbers) = self;
        let (floats, words) = (&*buffer.floats, &*buffer.words);
        let groups = numbers.as_chunks_mut::<GROUP>().0.iter_mut();
        let [_, bytes, _] = buffer.encoding.group();
        match buffer.encoding {
            ElementEncoding::Floats(dtype) => Widen(dtype, floats, numbers).call(),
            ElementEncoding::Weights(_) if bytes == 0 => Widen(DType::BF16, floats, numbers).call(),
            ElementEncoding::Weights(_) => {
                let weights = cast_slice(floats).chunks(GROUP);
                let low = words.chunks_exact(bytes).zip(&*buffer.checksums);
                for ((numbers, weights), (low, checksum)) in groups.zip(weights).zip(low) {
                    split::join(&split::high(weights), low, *checksum, numbers);
                }
            }
            ElementEncoding::Codes(scheme) => {
                let codes = words.chunks_exact(bytes).zip(cast_slice::<u8, f32>(floats));
                for (numbers, (codes, scale)) in groups.zip(codes) {
                    *numbers = scheme.decode(codes, *scale);
                }
            }
        }
    }
}

/// Number of groups whose scales are computed together, so that no write waits for its own scale.
const TOGETHER: usize = 16;

struct Write<'a, 'c>(&'a mut ElementBuffer<'c>, &'a [f32], Dither<'a>);

impl Loop for Write<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(buffer, numbers, dither) = self;
        let (floats, words) = (&mut *buffer.floats, &mut *buffer.words);
        let groups = numbers.as_chunks::<GROUP>().0.iter().enumerate();
        let [_, bytes, _] = buffer.encoding.group();
        match buffer.encoding {
            ElementEncoding::Floats(DType::F16) => {
                for (float, number) in cast_slice_mut(floats).iter_mut().zip(numbers) {
                    *float = f16::from_f32(*number);
                }
            }
            ElementEncoding::Floats(DType::BF16) => {
                for (float, number) in cast_slice_mut(floats).iter_mut().zip(numbers) {
                    *float = nearest(*number);
                }
            }
            ElementEncoding::Floats(dtype) => panic!("{dtype:?} is not computed in f32"),
            ElementEncoding::Weights(format) => {
                let weights = cast_slice_mut(floats).chunks_mut(GROUP);
                let mut low = words
                    .chunks_exact_mut(bytes.max(1))
                    .zip(&mut *buffer.checksums);
                for ((group, numbers), weights) in groups.zip(weights) {
                    let random = dither.random(group);
                    let high = if format == WeightFormat::Stochastic {
                        split::rounded(numbers, &random)
                    } else {
                        let (low, checksum) = low.next().expect("each group has residuals");
                        let (high, group_checksum) = split::split(numbers, &random, low);
                        *checksum = group_checksum;
                        high
                    };
                    split::put(&high, weights);
                }
            }
            ElementEncoding::Codes(scheme) => {
                let codes = words.chunks_mut(TOGETHER * bytes);
                let codes = codes.zip(cast_slice_mut::<u8, f32>(floats).chunks_mut(TOGETHER));
                let groups = numbers.as_chunks::<GROUP>().0.chunks(TOGETHER);
                for (run, (groups, (codes, largest))) in groups.zip(codes).enumerate() {
                    let mut scales = [Scale::NONE; TOGETHER];
                    for index in 0..groups.len() {
                        scales[index] = Scale::of(&groups[index]);
                        largest[index] = scales[index].largest;
                    }
                    for (index, codes) in codes.chunks_exact_mut(bytes).enumerate() {
                        let thresholds = dither.thresholds(run * TOGETHER + index);
                        scheme.encode_in(scales[index], &groups[index], &thresholds, codes);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
