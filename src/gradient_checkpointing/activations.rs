use backburn_base::AnyTensor;
use burn::nn::LstmState;
use burn::nn::attention::MhaOutput;
use burn::tensor::{Bool, Int, Tensor};

/// An input or output of a checkpointed block: tensors, and tuples, options and vectors of
/// them; [`Constant`](crate::Constant)s; Burn's [`LstmState`] and [`MhaOutput`]. Build Burn's structs with private fields, such as
/// `TransformerEncoderInput`, inside of the block. Your own structs and enums derive the trait:
///
/// ```
/// use backburn::{Activations, Constant, gradient_checkpointing};
/// use burn::tensor::{Bool, Tensor};
/// # use burn::{nn::{Linear, LinearConfig}, tensor::Device};
///
/// #[derive(Activations, Clone)]
/// struct Hidden {
///     states: Tensor<3>,
///     mask: Option<Tensor<3, Bool>>,
///     value: Constant<f32>,
/// }
///
/// # let block: Linear = LinearConfig::new(2, 2).init(&Device::flex());
/// # let hidden = Hidden { states: Tensor::ones([1, 3, 2], &Device::flex()), mask: None, value: Constant(0.0) };
/// let hidden = gradient_checkpointing(&block, hidden, |block: &Linear, hidden: Hidden| {
///     let states = block.forward(hidden.states);
///     let states = match &hidden.mask {
///         Some(mask) => states.mask_fill(mask.clone(), hidden.value.0),
///         None => states,
///     };
///     Hidden { states, ..hidden }
/// });
/// ```
///
/// Every field must implement the trait, and none can be skipped: a tracked tensor in a skipped field would bypass the block. So
/// the derive rejects other fields. Don't implement the trait by hand.
///
/// ```compile_fail,E0277
/// # use backburn::Activations;
/// # use burn::tensor::Tensor;
/// #[derive(Activations, Clone)]
/// struct Hidden {
///     states: Tensor<3>,
///     value: f32, // `Constant<f32>`
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be an input or output of a checkpointed block",
    note = "derive `backburn::Activations` for a struct of tensors; wrap values that are not tensors in `backburn::Constant`"
)]
pub trait Activations: Clone + Send + 'static {
    /// Applies `map` to every float tensor, in order.
    #[doc(hidden)]
    fn map_floats(self, map: &mut FloatMap<'_>) -> Self;
}

/// A function of float tensors of any shape, typed as of one dimension like an [`AnyTensor`]. Public only for the derive.
#[doc(hidden)]
pub type FloatMap<'a> = dyn FnMut(Tensor<1>) -> Tensor<1> + 'a;

/// Calls `show` with each float tensor in `activations`, in order.
pub(super) fn each<A: Activations>(activations: &A, mut show: impl FnMut(&Tensor<1>)) {
    drop(activations.clone().map_floats(&mut |tensor| {
        show(&tensor);
        tensor
    }));
}

impl<const D: usize> Activations for Tensor<D> {
    fn map_floats(self, map: &mut FloatMap<'_>) -> Self {
        let mapped = map(AnyTensor::from(self).0);
        AnyTensor::from(mapped).of_dims()
    }
}

impl<const D: usize> Activations for Tensor<D, Int> {
    fn map_floats(self, _map: &mut FloatMap<'_>) -> Self {
        self
    }
}

impl<const D: usize> Activations for Tensor<D, Bool> {
    fn map_floats(self, _map: &mut FloatMap<'_>) -> Self {
        self
    }
}

impl<T: Activations> Activations for Option<T> {
    fn map_floats(self, map: &mut FloatMap<'_>) -> Self {
        self.map(|activations| activations.map_floats(map))
    }
}

impl<T: Activations> Activations for Vec<T> {
    fn map_floats(self, map: &mut FloatMap<'_>) -> Self {
        let all = self.into_iter();
        all.map(|activations| activations.map_floats(map)).collect()
    }
}

impl<const D: usize> Activations for LstmState<D> {
    fn map_floats(self, map: &mut FloatMap<'_>) -> Self {
        let Self { cell, hidden } = self;
        Self {
            cell: cell.map_floats(map),
            hidden: hidden.map_floats(map),
        }
    }
}

impl Activations for MhaOutput {
    fn map_floats(self, map: &mut FloatMap<'_>) -> Self {
        let Self { weights, context } = self;
        Self {
            weights: weights.map_floats(map),
            context: context.map_floats(map),
        }
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {
        $(#[allow(non_snake_case)]
        impl<$($name: Activations),*> Activations for ($($name,)*) {
            fn map_floats(self, map: &mut FloatMap<'_>) -> Self {
                let ($($name,)*) = self;
                ($($name.map_floats(map),)*)
            }
        })*
    };
}

tuples!((A B) (A B C) (A B C D) (A B C D E));
