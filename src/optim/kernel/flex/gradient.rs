use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Element, bf16, f16};
use bytemuck::Pod;

use super::super::super::rule::Number;

/// A gradient as it lies in memory.
pub(super) enum Gradient<'a, E> {
    Dense(&'a [E]),
    Strided {
        storage: &'a [E],
        layout: &'a Layout,
    },
}

impl<'a, E: Stored> Gradient<'a, E> {
    pub(super) fn new(tensor: &'a FlexTensor) -> Self {
        match tensor.as_slice() {
            Some(elements) => Self::Dense(elements),
            None => Self::Strided {
                storage: tensor.storage(),
                layout: tensor.layout(),
            },
        }
    }
}

/// Copies the elements from the `start`-th on, in the order of the shape.
pub(super) fn gather<E: Copy>(storage: &[E], layout: &Layout, start: usize, to: &mut [E]) {
    let shape = layout.shape();
    let mut index = vec![0; shape.num_dims()];
    let mut rest = start;
    for dim in (0..index.len()).rev() {
        index[dim] = rest % shape[dim];
        rest /= shape[dim];
    }
    for element in to {
        *element = storage[layout.index(&index)];
        for dim in (0..index.len()).rev() {
            index[dim] += 1;
            if index[dim] < shape[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
}

/// An element as it is stored and as it is computed with.
pub(super) trait Stored: Element + Pod + Send + Sync {
    type Computed: Number;

    fn load(self) -> Self::Computed;
    fn store(value: Self::Computed) -> Self;
}

macro_rules! stored {
    ($stored:ty, $computed:ty, $load:expr, $store:expr) => {
        impl Stored for $stored {
            type Computed = $computed;

            #[inline(always)]
            fn load(self) -> $computed {
                $load(self)
            }

            #[inline(always)]
            fn store(value: $computed) -> Self {
                $store(value)
            }
        }
    };
}

stored!(f64, f64, |value| value, |value| value);
stored!(f32, f32, |value| value, |value| value);
stored!(f16, f32, f16::to_f32, f16::from_f32);
stored!(bf16, f32, bf16::to_f32, bf16::from_f32);
