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
        })
    }

    /// Those in a record, if they are as many as they should be.
    pub(crate) fn of_record(
        words: TensorData,
        format: WeightFormat,
        elements: usize,
        device: &Device,
    ) -> Option<Self> {
        (words.num_elements() == self::words(format, elements)).then(|| Self {
            words: Tensor::from_data(words, (device, DType::U32)),
            format,
            elements,
        })
    }

    /// The trained weights, in f32.
    pub(crate) fn joined<const D: usize>(self, high: Tensor<D>) -> Tensor<D> {
        let words = self.words.into_data().iter::<u32>().collect();
        Self::join(words, self.format, high)
    }

    /// The same from the words of the low bits.
    pub(crate) fn join<const D: usize>(
        mut words: Vec<u32>,
        format: WeightFormat,
        high: Tensor<D>,
    ) -> Tensor<D> {
        let (shape, device) = (high.shape(), high.device());
        let high = high.into_data();
        let high = high.as_slice::<bf16>().expect("low bits are those of bf16");
        let low = LowSlice::of(&mut words, format, high.len());
        let mut values = Vec::with_capacity(high.len());
        for (group, high) in high.chunks(GROUP).enumerate() {
            values.extend_from_slice(&low.load(group, high)[..high.len()]);
        }
        let data = TensorData::new(values, shape);
        Tensor::from_data(data, (&device, DType::F32))
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
        let mut values = [0.0; GROUP];
        let start = group * GROUP * self.width;
        let low = &self.bytes[start..start + GROUP * self.width];
        let belong = mark(high) == self.marks[group];
        if self.width == 1 {
            for lane in 0..high.len() {
                values[lane] = join24(high[lane], if belong { low[lane] as i8 } else { 0 });
            }
        } else {
            let low = bytemuck::cast_slice::<u8, i16>(low);
            for lane in 0..high.len() {
                values[lane] = join32(high[lane], if belong { low[lane] } else { 0 });
            }
        }
        values
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
