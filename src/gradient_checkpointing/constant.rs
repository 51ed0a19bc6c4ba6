use std::panic::RefUnwindSafe;

use super::activations::{Activations, FloatMap};

/// What a block computes with that is no tensor and not [`Copy`]: a configuration, a list, a device.
///
/// ```
/// use backburn::{Constant, gradient_checkpointing};
/// # use burn::{nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// # let device = Device::flex();
/// # let block: Linear = LinearConfig::new(2, 2).init(&device);
/// # let x = Tensor::<2>::ones([3, 2], &device);
/// let exponents = vec![2, 3];
/// let y = gradient_checkpointing(
///     &block,
///     (x, Constant(exponents)),
///     |block: &Linear, (x, Constant(exponents))| {
///         exponents.into_iter().fold(block.forward(x), |x, exponent| x.powi_scalar(exponent))
///     },
/// );
/// ```
///
/// Both runs get it, so nothing in it may change in between. [`RefUnwindSafe`] keeps out what is not made to be shared, such as
/// a `Cell`, or a parameter, and with it every module that has one. It lets locks and atomics in: leave these as they are. A
/// layer that several blocks share is a part of each, where its running statistics are updated once:
/// `gradient_checkpointing(&(block.clone(), shared.clone()), ..)`.
///
/// ```compile_fail,E0277
/// # use backburn::{Constant, gradient_checkpointing};
/// # use burn::{nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// # let block: Linear = LinearConfig::new(2, 2).init(&Device::flex());
/// # let (shared, x) = (block.clone(), Tensor::<2>::ones([3, 2], &Device::flex()));
/// gradient_checkpointing(&block, (x, Constant(shared)), |block: &Linear, (x, _)| block.forward(x));
/// ```
///
/// A tensor is an input of its own. In here the compiler does not see it: one that is tracked ends the first run with a
/// panic, as [`gradient_checkpointing`](crate::gradient_checkpointing()) says.
#[derive(Clone, Copy, Debug)]
pub struct Constant<T>(pub T);

impl<T: Clone + Send + RefUnwindSafe + 'static> Activations for Constant<T> {
    fn map_floats(self, _map: &mut FloatMap<'_>) -> Self {
        self
    }
}
