use burn::module::{LoraAdapter, Module, Param, Reparameterization};
use burn::tensor::{FloatDType, Tensor};

use super::rematerialized::rematerialized;
use super::shape_stub::is_weight;
use super::stored::QuantizedValues;
use super::weight::ComposedWeight;

/// An adapter on a frozen quantized weight, like Burn's [`LoraAdapter`](burn::module::LoraAdapter) on a frozen weight.
/// A parameter with this adapter has the value `base + scale * (a @ b)`.
///
/// The parameter itself is a shape stub: a tensor of the weight's shape without elements. Read it with [`Param::val`], as
/// Burn's layers do. [`Module::materialize`] makes ordinary weights of all of them.
#[derive(Debug, Module)]
pub struct QuantizedAdapter {
    /// The factor with shape `[d_in, rank]` (trainable).
    pub a: Param<Tensor<2>>,
    /// The factor with shape `[rank, d_out]` (trainable).
    pub b: Param<Tensor<2>>,
    /// The factor by which the product `a @ b` is multiplied: `alpha / rank`.
    pub scale: f64,
    values: QuantizedValues,
}

/// Returns `true` if the parameter at `path` is a factor of an adapter, on a quantized weight or on an ordinary one.
pub(crate) fn is_factor(path: &str) -> bool {
    let is = |name| path == name || path.ends_with(&format!(".{name}"));
    is("lora.a") || is("lora.b")
}

/// Returns the path of the quantized weight whose values are the parameter at `path`, or `None` if it is another parameter. The path
/// is empty if the weight is the whole model.
pub(crate) fn weight_of_values(path: &str) -> Option<&str> {
    let path = path.strip_suffix("lora.values")?;
    path.strip_suffix('.').or(path.is_empty().then_some(path))
}

impl QuantizedAdapter {
    pub(super) fn new(adapter: LoraAdapter, values: QuantizedValues) -> Self {
        let LoraAdapter { a, b, scale } = adapter;
        Self {
            a,
            b,
            scale,
            values,
        }
    }

    /// Returns `base` plus the adapter; `base` is a float weight that was loaded in place of the quantized one.
    fn on_floats(&self, base: Tensor<2>) -> Tensor<2> {
        let delta = self.a.val().matmul(self.b.val()).mul_scalar(self.scale);
        // As Burn's adapter: a record may have another type.
        base.cast(FloatDType::from(delta.dtype())) + delta
    }
}

impl Reparameterization for QuantizedAdapter {
    /// The name of Burn's adapter, so that each adapter loads the factors of the other.
    const NAME: &'static str = "lora";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        assert!(
            !base.is_require_grad(),
            "a quantized weight was unfrozen, and quantized values can't be trained: exclude it from `unfreeze_group`"
        );
        if is_weight(&base) {
            let base = Tensor::from_dispatch(base.into_dispatch());
            return Tensor::from_dispatch(self.on_floats(base).into_dispatch());
        }
        let weight = ComposedWeight {
            base: self.values.rows(),
            scale: self.scale,
        };
        let weight = rematerialized(weight, self.a.val(), self.b.val());
        Tensor::from_dispatch(weight.into_dispatch())
    }
}
