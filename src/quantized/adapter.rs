use burn::module::{LoraAdapter, Module, Param, Reparameterization};
use burn::tensor::Tensor;

use super::remade::remade;
use super::weight::ComposedWeight;

/// An adapter on a frozen weight in codes, as Burn's [`LoraAdapter`](burn::module::LoraAdapter) is one on a frozen weight:
/// a parameter that carries it has the value `base + scale * (a @ b)`.
///
/// The parameter itself holds the codes, which can't be computed with: read it with [`Param::val`], as Burn's layers do.
/// [`Module::materialize`] makes ordinary weights of all of them.
#[derive(Debug, Module)]
pub struct QuantizedAdapter {
    /// The factor with shape `[d_in, rank]` (trainable).
    pub a: Param<Tensor<2>>,
    /// The factor with shape `[rank, d_out]` (trainable).
    pub b: Param<Tensor<2>>,
    /// The factor of their product, `alpha / rank`.
    pub scale: f64,
}

impl From<LoraAdapter> for QuantizedAdapter {
    fn from(adapter: LoraAdapter) -> Self {
        let LoraAdapter { a, b, scale } = adapter;
        Self { a, b, scale }
    }
}

impl Reparameterization for QuantizedAdapter {
    const NAME: &'static str = "qlora";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        assert!(
            !base.is_require_grad(),
            "a quantized weight was thawed, and its codes can't be trained: thaw all but it"
        );
        let weight = ComposedWeight {
            base: Tensor::from_dispatch(base.inner().into_dispatch()),
            scale: self.scale,
        };
        let weight = remade(weight, self.a.val(), self.b.val());
        Tensor::from_dispatch(weight.into_dispatch())
    }
}
