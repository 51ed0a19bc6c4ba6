use burn::tensor::{DType, bf16, f16};
use bytemuck::cast_slice;

use super::super::rule::Loop;

/// A loop that converts floats of a half type to f32.
pub(crate) struct Widen<'a>(
    pub(crate) DType,
    pub(crate) &'a [u8],
    pub(crate) &'a mut [f32],
);

impl Loop for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(dtype, floats, numbers) = self;
        match dtype {
            DType::F16 => {
                for (number, float) in numbers.iter_mut().zip(cast_slice::<u8, f16>(floats)) {
                    *number = float.to_f32();
                }
            }
            DType::BF16 => {
                for (number, float) in numbers.iter_mut().zip(cast_slice::<u8, bf16>(floats)) {
                    *number = float.to_f32();
                }
            }
            dtype => panic!("{dtype:?} is not computed in f32"),
        }
    }
}
