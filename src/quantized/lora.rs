use burn::module::{Lora, Param, Reparameterizer};
use burn::tensor::{DType, Tensor};

use super::adapter::QuantizedAdapter;
use super::format::BaseFormat;
use super::shape_stub::{is_shape_stub, is_weight, shape_stub_of};
use super::stored::QuantizedValues;
use super::weight::{is_finite, quantized};

/// A reparameterizer that freezes a model, quantizes its matrices to few bits, and adds an adapter to each, as Burn's
/// [`QLora`](burn::module::QLora) does.
///
/// The [`Lora`] selects the parameters to adapt: by default all matrices, including embedding tables. All others are
/// frozen and otherwise unchanged. Each matrix is quantized before the next is read; a lazy one is initialized when it
/// is read.
///
/// Differences from Burn's `QLora`:
///
/// - 4 bits take 0.56 bytes per weight (Burn's take one byte on `flex` and `ndarray`). In addition, a stub shows
///   the dense shape of the weight. It takes one byte on `flex`, a quarter of a byte per weight on CubeCL devices and in
///   their records, and one byte per weight on `ndarray` and in records of CPU backends. Burn's own [`fork`](burn::module::Module::fork) makes dense floats
///   of it: 4 bytes per weight.
/// - The dense weight is rematerialized in the backward pass, so it exists for one layer at a time, also without
///   [gradient checkpointing](crate::gradient_checkpointing()). Its gradient exists until the gradients of the factors
///   are computed. In fused training this is immediately; in stock training it is at the end of the pass, because Burn
///   runs the tape by depth.
///
/// It trains as Burn's LoRA would on the dequantized weights, to the bit on CPU backends.
///
/// ```
/// use backburn::{BaseFormat, FusedOptimizer, QuantizedLora};
/// use burn::module::{Lora, Module};
/// use burn::nn::LinearConfig;
/// use burn::optim::AdamConfig;
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(64, 64).init(&device);
/// let model = model.apply_reparameterization(QuantizedLora::new(Lora::new(4, 8.0), BaseFormat::Bits4));
///
/// let mut fused = FusedOptimizer::new(model, AdamConfig::new().init())?;
/// let x = Tensor::<2>::ones([4, 64], &device);
/// fused.step(1e-3, |model| model.forward(x).mean())?;
/// let merged = fused.model().materialize(); // dense weights, the adapters added
/// # assert_eq!(merged.weight.dims(), [64, 64]);
/// # Ok::<(), backburn::FusedError>(())
/// ```
///
/// # Panics
///
/// Panics if a matrix of the model has a value that is not finite in f32, is already quantized, or already has an
/// adapter. The message contains its path.
#[derive(Clone, Debug)]
pub struct QuantizedLora {
    pub(super) lora: Lora,
    format: BaseFormat,
    /// The path of the last quantized matrix. A parameter below this path belongs to an adapter that the matrix already
    /// has.
    last: Option<String>,
}

impl QuantizedLora {
    /// Creates a reparameterizer that adds the adapters of `lora` to weights in `format`.
    pub fn new(lora: Lora, format: BaseFormat) -> Self {
        Self {
            lora,
            format,
            last: None,
        }
    }

    /// Returns a shape stub of `param` with its quantized values, or `param` with the reason why it has none.
    pub(super) fn quantized<const D: usize>(
        &self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> Result<(Param<Tensor<D>>, QuantizedValues), (Param<Tensor<D>>, String)> {
        if is_quantized(&param.base()) {
            let reason = format!(
                "parameter `{path}` is already quantized: apply `QuantizedLora` once, to weights in a float type"
            );
            return Err((param, reason));
        }
        if !is_finite(&param.base()) {
            let reason = format!(
                "parameter `{path}` has a value that is not finite and can't be quantized: check the file that it was loaded from"
            );
            return Err((param, reason));
        }
        // A layer in column order transposes what it saves and loads, and a shape stub has the shape in memory.
        let (id, value, mapper) = param.consume();
        let shape_stub = shape_stub_of(&value);
        let value = Tensor::from_dispatch(value.into_dispatch());
        let values = QuantizedValues::new(quantized(value, self.format));
        let [saved, loaded] = [mapper.clone(), mapper.clone()];
        let param = Param::from_mapped_value(id, shape_stub, mapper)
            .save_mapper(move |value| match is_shape_stub(value.dtype()) {
                true => value,
                false => saved.on_save(value),
            })
            .load_mapper(move |value| match is_weight(&value) {
                true => loaded.on_load(value),
                false => shape_stub_of(&value),
            });
        Ok((param, values))
    }
}

fn is_quantized<const D: usize>(value: &Tensor<D>) -> bool {
    matches!(value.dtype(), DType::QFloat(_))
}

impl Reparameterizer for QuantizedLora {
    type Reparam = QuantizedAdapter;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<QuantizedAdapter>) {
        if let Some(last) = &self.last
            && let Some(below) = path.strip_prefix(last.as_str())
            && (last.is_empty() || below.starts_with('.'))
        {
            panic!(
                "parameter `{last}` already has an adapter, and a parameter can have only one: first merge the adapter \
                 into the weight with `Module::materialize`"
            );
        }
        let (base, adapter) = self.lora.reparameterize(path, param);
        let Some(adapter) = adapter else {
            return (base, None);
        };
        let quantized = self.quantized(path, base);
        let (param, values) = quantized.unwrap_or_else(|(_, reason)| panic!("{reason}"));
        self.last = Some(path.to_string());
        (param, Some(QuantizedAdapter::new(adapter, values)))
    }
}
