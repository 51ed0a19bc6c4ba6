use std::panic::RefUnwindSafe;

use super::activations::{Activations, FloatMap};

/// An input of a block that is neither a tensor nor [`Copy`]: a configuration, a list, a device.
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
/// Both runs of the block receive the value, so it must not change in between. The bound [`RefUnwindSafe`] excludes
/// interior mutability such as a `Cell`, and therefore parameters and modules. It allows locks and atomics, which the
/// block must not modify. If several blocks share a layer, pass it as a part of each block. Its running statistics are
/// then updated once: `gradient_checkpointing(&(block.clone(), shared.clone()), ..)`.
///
/// ```compile_fail,E0277
/// # use backburn::{Constant, gradient_checkpointing};
/// # use burn::{nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// # let block: Linear = LinearConfig::new(2, 2).init(&Device::flex());
/// # let (shared, x) = (block.clone(), Tensor::<2>::ones([3, 2], &Device::flex()));
/// gradient_checkpointing(&block, (x, Constant(shared)), |block: &Linear, (x, _)| block.forward(x));
/// ```
///
/// Pass tensors as inputs. A tracked tensor in a constant is not detected by the compiler; the first run panics, see
/// [`gradient_checkpointing`](crate::gradient_checkpointing()).
#[derive(Clone, Copy, Debug)]
pub struct Constant<T>(pub T);

impl<T: Clone + Send + RefUnwindSafe + 'static> Activations for Constant<T> {
    fn map_floats(self, _map: &mut FloatMap<'_>) -> Self {
        self
    }
}
