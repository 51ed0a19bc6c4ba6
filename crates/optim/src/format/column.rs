//! Elements as they lie in memory, read as numbers and written again.

use super::super::vectorized::{Loop, vectorized};
use super::noise::Dither;
use super::root::{Coding, GROUP, Scale};
use super::split;
use super::weight::{WeightFormat, nearest};
use super::widen::Widen;
use burn::tensor::{DType, f16};
use bytemuck::{cast_slice, cast_slice_mut};

/// How elements are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kept {
    /// In floats of this type, rounded to the nearest.
    Floats(DType),
    /// In bf16, with what the format keeps beside.
    Weights(WeightFormat),
    /// In codes, a scale in f32 for every group.
    Codes(Coding),
}

impl Kept {
    /// Bytes of the floats of a group, and of the words beside them; how many marks it has.
    fn group(self) -> [usize; 3] {
        match self {
            Self::Floats(dtype) => [GROUP * dtype.size(), 0, 0],
            Self::Weights(format) => {
                let low = format.low_bytes();
                [GROUP * 2, GROUP * low, usize::from(low > 0)]
            }
            Self::Codes(coding) => [4, coding.width.group_bytes(), 0],
        }
    }

    /// Words of 32 bits beside the floats of so many elements.
    pub(crate) fn words(self, elements: usize) -> usize {
        let [_, bytes, marks] = self.group();
        elements.div_ceil(GROUP) * (bytes / 4 + marks)
    }

    /// So many numbers in f32, of their floats and words.
    pub(crate) fn numbers(self, floats: &mut [u8], words: &mut [u32], elements: usize) -> Vec<f32> {
        let mut numbers = vec![0.0; elements.next_multiple_of(GROUP)];
        Column::new(self, floats, words).read(&mut numbers);
        numbers.truncate(elements);
        numbers
    }

    /// Writes the floats of these numbers, rounded to the nearest, and returns the words beside them.
    pub(crate) fn keep(self, mut numbers: Vec<f32>, floats: &mut [u8]) -> Vec<u32> {
        let mut words = vec![0; self.words(numbers.len())];
        numbers.resize(numbers.len().next_multiple_of(GROUP), 0.0);
        Column::new(self, floats, &mut words).write(&numbers, Dither::ToTheNearest);
        words
    }
}

/// Some elements in memory, from the first of a group on.
pub(crate) struct Column<'a> {
    kept: Kept,
    /// The elements, or the scales of groups.
    floats: &'a mut [u8],
    /// What is beside them: the low bits of elements, or codes, of whole groups.
    words: &'a mut [u8],
    /// A number for each group that has low bits, which tells the weights that they belong to from others.
    marks: &'a mut [u32],
}

impl<'a> Column<'a> {
    /// `words` are the low bits of all groups, then their marks; or codes.
    pub(crate) fn new(kept: Kept, floats: &'a mut [u8], words: &'a mut [u32]) -> Self {
        let [bytes, _, marks] = kept.group();
        let marks = floats.len().div_ceil(bytes) * marks;
        let (words, marks) = words.split_at_mut(words.len() - marks);
        Self {
            kept,
            floats,
            words: cast_slice_mut(words),
            marks,
        }
    }

    /// Takes off the elements of so many groups.
    pub(crate) fn take(&mut self, groups: usize) -> Self {
        fn first<'a, T>(all: &mut &'a mut [T], length: usize) -> &'a mut [T] {
            let length = length.min(all.len());
            all.split_off_mut(..length).expect("there are as many")
        }
        let [floats, words, marks] = self.kept.group();
        Self {
            kept: self.kept,
            floats: first(&mut self.floats, groups * floats),
            words: first(&mut self.words, groups * words),
            marks: first(&mut self.marks, groups * marks),
        }
    }

    /// Whether random bits decide how an element is rounded.
    pub(crate) fn is_dithered(&self) -> bool {
        use WeightFormat::{Split24, Stochastic};
        matches!(
            self.kept,
            Kept::Weights(Stochastic | Split24) | Kept::Codes(_)
        )
    }

    /// Whether they are numbers in f32.
    fn are_numbers(&self) -> bool {
        matches!(self.kept, Kept::Floats(DType::F32))
    }

    /// Notes the groups whose codes stand for NaN.
    pub(crate) fn broken(&self, groups: &mut [bool]) {
        if let Kept::Codes(_) = self.kept {
            for (broken, scale) in groups.iter_mut().zip(cast_slice::<u8, f32>(self.floats)) {
                *broken |= scale.is_nan();
            }
        }
    }

    /// All elements, which are so many, as numbers in f32: where they lie, or in `numbers`, which has room for whole groups.
    pub(crate) fn open<'s>(&'s mut self, numbers: &'s mut [f32], length: usize) -> &'s mut [f32] {
        if self.are_numbers() {
            return cast_slice_mut(self.floats);
        }
        self.read(numbers);
        &mut numbers[..length]
    }

    /// Puts so many `numbers` back, unless they lie where they were opened.
    pub(crate) fn close(&mut self, numbers: &mut [f32], length: usize, dither: Dither<'_>) {
        if !self.are_numbers() {
            // What fills up a last group has no scale of its own.
            let numbers = &mut numbers[..length.next_multiple_of(GROUP)];
            numbers[length..].fill(0.0);
            self.write(numbers, dither);
        }
    }

    /// Reads all elements.
    pub(crate) fn read(&self, numbers: &mut [f32]) {
        if !self.floats.is_empty() {
            vectorized(Read(self, numbers));
        }
    }

    /// Writes these in the place of all elements: whole groups, filled up with zeros.
    pub(crate) fn write(&mut self, numbers: &[f32], dither: Dither<'_>) {
        if !self.floats.is_empty() {
            vectorized(Write(self, numbers, dither));
        }
    }

    /// Puts the weights that were split in the place of what a cast has made of them, if there are some.
    #[cfg(feature = "cubecl")]
    pub(crate) fn mend(self) -> bool {
        let Kept::Weights(format) = self.kept else {
            return false;
        };
        let low = self.words.chunks_exact(GROUP * format.low_bytes());
        let low = low.zip(&*self.marks);
        let mut is_other = false;
        for (weights, (low, mark)) in cast_slice_mut(self.floats).chunks_mut(GROUP).zip(low) {
            if let Some(split) = split::as_split(format, &split::high(weights), low, *mark) {
                split::put(&split, weights);
                is_other = true;
            }
        }
        is_other
    }
}

// What follows is compiled for what the processor can do. (Plain loops: closures are not.)

struct Read<'a, 'c>(&'a Column<'c>, &'a mut [f32]);

impl Loop for Read<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(column, numbers) = self;
        let (floats, words) = (&*column.floats, &*column.words);
        let groups = numbers.as_chunks_mut::<GROUP>().0.iter_mut();
        let [_, bytes, _] = column.kept.group();
        match column.kept {
            Kept::Floats(dtype) => Widen(dtype, floats, numbers).call(),
            Kept::Weights(_) if bytes == 0 => Widen(DType::BF16, floats, numbers).call(),
            Kept::Weights(format) => {
                let weights = cast_slice(floats).chunks(GROUP);
                let low = words.chunks_exact(bytes).zip(&*column.marks);
                for ((numbers, weights), (low, mark)) in groups.zip(weights).zip(low) {
                    split::join(format, &split::high(weights), low, *mark, numbers);
                }
            }
            Kept::Codes(coding) => {
                let codes = words.chunks_exact(bytes).zip(cast_slice::<u8, f32>(floats));
                for (numbers, (codes, scale)) in groups.zip(codes) {
                    *numbers = coding.decode(codes, *scale);
                }
            }
        }
    }
}

/// Groups whose scales are known before the first is written, so that none waits for its own.
const TOGETHER: usize = 16;

struct Write<'a, 'c>(&'a mut Column<'c>, &'a [f32], Dither<'a>);

impl Loop for Write<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(column, numbers, dither) = self;
        let (floats, words) = (&mut *column.floats, &mut *column.words);
        let groups = numbers.as_chunks::<GROUP>().0.iter().enumerate();
        let [_, bytes, _] = column.kept.group();
        match column.kept {
            Kept::Floats(DType::F16) => {
                for (float, number) in cast_slice_mut(floats).iter_mut().zip(numbers) {
                    *float = f16::from_f32(*number);
                }
            }
            Kept::Floats(DType::BF16) | Kept::Weights(WeightFormat::Plain) => {
                for (float, number) in cast_slice_mut(floats).iter_mut().zip(numbers) {
                    *float = nearest(*number);
                }
            }
            Kept::Floats(_) => {
                let floats = cast_slice_mut(floats);
                floats.copy_from_slice(&numbers[..floats.len()]);
            }
            Kept::Weights(format) => {
                let weights = cast_slice_mut(floats).chunks_mut(GROUP);
                let mut low = words.chunks_exact_mut(bytes.max(1)).zip(&mut *column.marks);
                for ((group, numbers), weights) in groups.zip(weights) {
                    let random = dither.random(group);
                    let high = if format == WeightFormat::Stochastic {
                        split::rounded(numbers, &random)
                    } else {
                        let (low, mark) = low.next().expect("there are as many");
                        let (high, marked) = split::split(format, numbers, &random, low);
                        *mark = marked;
                        high
                    };
                    split::put(&high, weights);
                }
            }
            Kept::Codes(coding) => {
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
                        coding.encode_in(scales[index], &groups[index], &thresholds, codes);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
