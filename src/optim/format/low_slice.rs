use burn::tensor::bf16;

use super::root::{GROUP, Values};
use super::weight::{WeightFormat, join24, join32, mark, split24, split32};

/// The low bits of some groups.
pub(crate) struct LowSlice<'a> {
    bytes: &'a mut [u8],
    marks: &'a mut [u32],
    width: usize,
}

impl<'a> LowSlice<'a> {
    /// The low bits of so many elements in their words.
    pub(crate) fn of(words: &'a mut [u32], format: WeightFormat, elements: usize) -> Self {
        let groups = elements.div_ceil(GROUP);
        let width = format.low_bytes();
        let (bytes, marks) = match width {
            0 => (&mut [][..], &mut [][..]),
            _ => words.split_at_mut(groups * GROUP * width / 4),
        };
        Self {
            bytes: bytemuck::cast_slice_mut(bytes),
            marks,
            width,
        }
    }

    /// Those of the groups before the one of this number, and of the others.
    #[cfg(feature = "flex")]
    pub(crate) fn split_at(self, group: usize) -> [Self; 2] {
        let (bytes_left, bytes_right) = self.bytes.split_at_mut(group * GROUP * self.width);
        let (marks_left, marks_right) = self.marks.split_at_mut(group);
        let half = |bytes, marks| Self {
            bytes,
            marks,
            width: self.width,
        };
        [half(bytes_left, marks_left), half(bytes_right, marks_right)]
    }

    /// The trained weights of a group, of which `high` are those in bf16.
    #[inline(always)]
    pub(crate) fn load(&self, group: usize, high: &[bf16]) -> Values {
        if mark(high) == self.marks[group] {
            self.join(group, high)
        } else {
            self.load_others(group, high)
        }
    }

    /// The same of weights that are not those that were split.
    #[cold]
    fn load_others(&self, group: usize, high: &[bf16]) -> Values {
        if let Some(split) = self.as_split(group, high) {
            return self.join(group, &split[..high.len()]);
        }
        let mut values = [0.0; GROUP];
        for (value, high) in values.iter_mut().zip(high) {
            *value = high.to_f32();
        }
        values
    }

    #[inline(always)]
    fn join(&self, group: usize, high: &[bf16]) -> Values {
        let mut values = [0.0; GROUP];
        let low = self.group(group);
        if self.width == 1 {
            for lane in 0..high.len() {
                values[lane] = join24(high[lane], low[lane] as i8);
            }
        } else {
            let low = bytemuck::cast_slice::<u8, i16>(low);
            for lane in 0..high.len() {
                values[lane] = join32(high[lane], low[lane]);
            }
        }
        values
    }

    #[inline(always)]
    fn group(&self, group: usize) -> &[u8] {
        let start = group * GROUP * self.width;
        &self.bytes[start..start + GROUP * self.width]
    }

    /// The weights of a group that were split, if `high` are those in full precision, rounded by a cast: what lies in
    /// the middle between two numbers goes to the even one there, and away from zero here. (Sixteen bits can't tell
    /// both neighbours of an even number from each other.) Which of them it was, the mark tells.
    pub(super) fn as_split(&self, group: usize, high: &[bf16]) -> Option<[bf16; GROUP]> {
        // More are those of other weights, or too many to try.
        const MOST: usize = 12;
        let low = self.group(group);
        let is_halfway = |lane: usize| match self.width {
            1 => low[lane] as i8 == i8::MIN,
            _ => low[2 * lane..][..2] == i16::MIN.to_ne_bytes(),
        };
        let is_even = |lane: usize| high[lane].to_bits() & 1 == 0;
        let lanes = (0..high.len()).filter(|lane| is_even(*lane) && is_halfway(*lane));
        let lanes: Vec<usize> = lanes.collect();
        let moved = |subset: u64| {
            let mut moved = [bf16::ZERO; GROUP];
            moved[..high.len()].copy_from_slice(high);
            for (index, lane) in lanes.iter().enumerate() {
                let up = (subset >> index) as u16 & 1;
                moved[*lane] = bf16::from_bits(high[*lane].to_bits() + up);
            }
            (mark(&moved[..high.len()]) == self.marks[group]).then_some(moved)
        };
        // All of them where weights are alike.
        let some = match lanes.len() {
            0 => return None,
            few @ 1..=MOST => 1..1 << few,
            _ => 0..0,
        };
        std::iter::once(u64::MAX).chain(some).find_map(moved)
    }

    /// Splits the trained weights of a group.
    #[inline(always)]
    pub(crate) fn store(
        &mut self,
        group: usize,
        high: &mut [bf16],
        values: &Values,
        random: &[u32; GROUP],
    ) {
        let start = group * GROUP * self.width;
        let low = &mut self.bytes[start..start + GROUP * self.width];
        if self.width == 1 {
            for lane in 0..high.len() {
                let (rounded, lacks) = split24(values[lane], random[lane]);
                (high[lane], low[lane]) = (rounded, lacks as u8);
            }
        } else {
            let low = bytemuck::cast_slice_mut::<u8, i16>(low);
            for lane in 0..high.len() {
                (high[lane], low[lane]) = split32(values[lane]);
            }
        }
        self.marks[group] = mark(high);
    }
}
