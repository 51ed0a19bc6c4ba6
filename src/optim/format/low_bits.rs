use burn::tensor::{DType, Device, Int, Tensor, TensorData, bf16};

use super::root::{GROUP, Values};
use super::weight::{WeightFormat, join24, join32, mark, split24, split32};
use crate::device::sent;

/// What the weights of a parameter in bf16 lack of those that are trained.
///
/// With each group is a mark of the weights that it belongs to: what belongs to other weights (a record was loaded,
/// a module mapped) counts as nothing.
#[derive(Clone, Debug)]
pub struct LowBits {
    /// The low bits of all groups, each filled up, then the marks, in words of 32 bits: every device has that type.
    pub(crate) words: Tensor<1, Int>,
    pub(crate) format: WeightFormat,
    /// Of the parameter.
    pub(crate) elements: usize,
    /// Whether they are those of a record: the weights beside them may have gone through full precision since.
    // The kernels of devices need to know.
    #[cfg_attr(not(feature = "cubecl"), allow(dead_code))]
    pub(crate) is_loaded: bool,
}

/// Half of the last of 24 bits, in the place of random ones.
const TO_THE_NEAREST: [u32; GROUP] = [0x80; GROUP];

/// The low bits of some groups.
pub(crate) struct LowSlice<'a> {
    bytes: &'a mut [u8],
    marks: &'a mut [u32],
    width: usize,
}

impl LowBits {
    /// Those of a parameter of so many elements that lacks nothing, if the format has any.
    pub(crate) fn none(format: WeightFormat, elements: usize, device: &Device) -> Option<Self> {
        let words = || Tensor::zeros([words(format, elements)], (device, DType::U32));
        (format.low_bytes() > 0).then(|| Self {
            words: words(),
            format,
            elements,
            is_loaded: false,
        })
    }

    /// Those in a record, if they are as many as they should be.
    pub(crate) fn of_record(
        words: TensorData,
        format: WeightFormat,
        elements: usize,
        device: &Device,
    ) -> Option<Self> {
        // Each has a byte at least.
        let can_be = elements <= 4 * words.num_elements();
        let fits = can_be && words.num_elements() == self::words(format, elements);
        fits.then(|| Self {
            words: Tensor::from_data(words, (device, DType::U32)),
            format,
            elements,
            is_loaded: true,
        })
    }

    /// The trained weights, in f32.
    pub(crate) fn joined<const D: usize>(self, high: Tensor<D>) -> Tensor<D> {
        let words = self.words.into_data().iter::<u32>().collect();
        Self::join(words, self.format, high)
    }

    /// The same from the words of the low bits.
    pub(crate) fn join<const D: usize>(
        words: Vec<u32>,
        format: WeightFormat,
        high: Tensor<D>,
    ) -> Tensor<D> {
        let device = high.device();
        let data = join(words, format, high.into_data());
        Tensor::from_data(data, (&device, DType::F32))
    }

    /// Whether `value`, which is not in bf16, is the weights in bf16 without these.
    pub(crate) fn are_missing_in<const D: usize>(&self, value: &Tensor<D>) -> bool {
        let (value, dtype) = (value.to_data(), value.dtype());
        let high = value.clone().convert::<bf16>();
        if high.clone().convert_dtype(dtype) != value {
            return false;
        }
        let words = self.words.to_data().iter::<u32>().collect();
        join(words, self.format, high).convert_dtype(dtype) != value
    }

    /// The weights to which these belong, with them: `high`, unless a cast has rounded some of them otherwise.
    #[cfg(feature = "cubecl")]
    pub(crate) fn with_weights<const D: usize>(self, high: Tensor<D>) -> (Tensor<D>, Self) {
        let device = high.device();
        let mut data = high.to_data();
        let weights = data.as_mut_slice::<bf16>();
        let weights = weights.expect("low bits are those of bf16");
        let mut words: Vec<u32> = self.words.to_data().iter::<u32>().collect();
        let low = LowSlice::of(&mut words, self.format, weights.len());
        let mut is_other = false;
        for (group, weights) in weights.chunks_mut(GROUP).enumerate() {
            if let Some(split) = low.as_split(group, weights) {
                weights.copy_from_slice(&split[..weights.len()]);
                is_other = true;
            }
        }
        let low_bits = Self {
            is_loaded: false,
            ..self
        };
        if is_other {
            (Tensor::from_data(data, (&device, DType::BF16)), low_bits)
        } else {
            (high, low_bits)
        }
    }

    /// Splits weights in f32 into those in bf16 and what these lack in `format`, rounded to the nearest.
    pub(crate) fn split<const D: usize>(
        value: Tensor<D>,
        format: WeightFormat,
    ) -> (Tensor<D>, Option<Self>) {
        let (shape, device) = (value.shape(), value.device());
        let values: Vec<f32> = value.into_data().iter::<f32>().collect();
        let mut words = vec![0_u32; words(format, values.len())];
        let mut high = vec![bf16::ZERO; values.len()];
        let mut low = LowSlice::of(&mut words, format, values.len());
        for (group, (values, high)) in values.chunks(GROUP).zip(high.chunks_mut(GROUP)).enumerate()
        {
            let mut filled = [0.0; GROUP];
            filled[..values.len()].copy_from_slice(values);
            low.store(group, high, &filled, &TO_THE_NEAREST);
        }
        let length = words.len();
        let high = Tensor::from_data(TensorData::new(high, shape), (&device, DType::BF16));
        let words = || Tensor::from_data(TensorData::new(words, [length]), (&device, DType::U32));
        let low = (format.low_bytes() > 0).then(|| Self {
            words: words(),
            format,
            elements: values.len(),
            is_loaded: false,
        });
        (high, low)
    }

    /// The same on another device.
    pub(crate) fn on_device(self, device: &Device) -> Self {
        Self {
            words: sent(self.words, device),
            ..self
        }
    }
}

/// The trained weights, in f32, from those in bf16 and the words of the low bits.
fn join(mut words: Vec<u32>, format: WeightFormat, high: TensorData) -> TensorData {
    let weights = high.as_slice::<bf16>();
    let weights = weights.expect("low bits are those of bf16");
    let low = LowSlice::of(&mut words, format, weights.len());
    let mut values = Vec::with_capacity(weights.len());
    for (group, weights) in weights.chunks(GROUP).enumerate() {
        values.extend_from_slice(&low.load(group, weights)[..weights.len()]);
    }
    TensorData::new(values, high.shape().clone())
}

/// Words for so many elements.
fn words(format: WeightFormat, elements: usize) -> usize {
    match format.low_bytes() {
        0 => 0,
        bytes => {
            let groups = elements.div_ceil(GROUP);
            groups * GROUP * bytes / 4 + groups
        }
    }
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
    fn as_split(&self, group: usize, high: &[bf16]) -> Option<[bf16; GROUP]> {
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
