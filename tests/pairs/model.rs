//! A model with many kinds of parameters, and its batches.

use burn::module::{QLora, Quantizer};
use burn::tensor::quantization::{Calibration, QuantValue};

use crate::options::{Numbers, Options, Statistics, Weights};

use crate::common::*;

/// A model with a tied embedding, layers in blocks (one runs twice), a layer that only some batches use, and running
/// statistics.
#[derive(Module, Debug)]
pub struct Model {
    embedding: Embedding,
    layers: Vec<Linear>,
    norm: Option<BatchNorm>,
    seldom: Linear,
    scale: Param<Tensor<1>>,
}

/// The width, so that the weight of a layer has the elements that formats require.
const WIDTH: usize = 64;
const TOKENS: usize = 12;

#[derive(Clone, Debug)]
pub struct Batch {
    tokens: Tensor<2, Int>,
    /// `true` if one of its gradients is infinite.
    pub overflows: bool,
}

pub fn device() -> Device {
    Device::flex().autodiff()
}

pub fn batches(count: usize) -> Vec<Batch> {
    let batch = |index| Batch::of_rows(2 + index % 3);
    (0..count).map(batch).collect()
}

impl Batch {
    /// Creates a batch. With an even number of rows it reads all parameters.
    pub fn of_rows(rows: usize) -> Self {
        let uniform = Distribution::Uniform(0.0, TOKENS as f64);
        let tokens = Tensor::<2>::random([rows, 3], uniform, &device().inner()).int();
        Self {
            tokens: Tensor::from_inner(tokens),
            overflows: false,
        }
    }

    pub fn overflowing(self) -> Self {
        Self {
            overflows: true,
            ..self
        }
    }
}

impl Model {
    pub fn init(options: &Options) -> Self {
        let device = device();
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
        let in_f32 = matches!(options.numbers, Numbers::F32 | Numbers::F32InBf16);
        let has_norm = options.statistics == Statistics::Normed && in_f32;
        let model = Self {
            embedding: EmbeddingConfig::new(TOKENS, WIDTH).init(&device),
            layers: (0..3).map(layer).collect(),
            norm: has_norm.then(|| BatchNormConfig::new(WIDTH).init(&device)),
            seldom: LinearConfig::new(WIDTH, WIDTH).init(&device),
            scale: Param::from_tensor(Tensor::ones([WIDTH], &device)),
        };
        let model = cast(model, options.dtype()).unwrap();
        let layers = ParamGroup::from_predicates(vec!["layers", "weight"]);
        let lora = Lora::new(2, 4.0).set_dtype(options.dtype());
        match options.weights {
            Weights::Plain => model,
            Weights::Adapters => model.apply_lora(lora),
            Weights::TrainedBase => {
                let statistics = ParamGroup::from_predicate("running");
                let all = ParamGroup::all().exclude(statistics);
                model.apply_lora(lora).unfreeze_group(all)
            }
            Weights::BaseInBytes => {
                let scheme = device.settings().quantization.scheme;
                let scheme = scheme.with_value(QuantValue::Q8S);
                let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
                quantizer.set_param_group(layers);
                model.apply_qlora(QLora::new(lora, quantizer))
            }
            Weights::BaseInCodes => {
                let lora = lora.set_param_group(layers);
                model.apply_reparameterization(QuantizedLora::new(lora, BaseFormat::Bits4))
            }
        }
    }

    pub fn loss(&self, batch: &Batch, in_blocks: bool) -> Tensor<1> {
        let is_even = batch.tokens.dims()[0].is_multiple_of(2);
        let run = |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh();
        let x: Tensor<2> = self.embedding.forward(batch.tokens.clone()).flatten(0, 1);
        let mut x = x;
        for (index, layer) in self.layers.iter().chain(&self.layers[..1]).enumerate() {
            if let (1, Some(norm)) = (index, &self.norm) {
                let normed = |norm: &BatchNorm, x: Tensor<2>| norm.forward(x);
                x = block_if(in_blocks, norm, x, normed);
            }
            x = block_if(in_blocks, layer, x, run);
        }
        if is_even {
            let forward = |seldom: &Linear, x: Tensor<2>| seldom.forward(x);
            x = block_if(in_blocks, &self.seldom, x, forward);
        }
        let x = x * self.scale.val().unsqueeze();
        let logits = x.matmul(self.embedding.weight.val().transpose());
        let loss = logits.powi_scalar(2).mean() * 0.1;
        if batch.overflows {
            let dtype = loss.dtype();
            let infinite = Tensor::<1>::ones([WIDTH], &device()).cast(FloatDType::from(dtype));
            return loss + (self.overflowing().val() * infinite * f64::INFINITY).sum();
        }
        loss
    }

    /// The parameter whose gradient is infinite if a batch overflows.
    fn overflowing(&self) -> &Param<Tensor<1>> {
        &self.scale
    }

    /// The running statistics with all updates.
    pub fn statistics(&self) -> Vec<Tensor<1>> {
        let norms = self.norm.iter();
        let both = norms.flat_map(|norm| [&norm.running_mean, &norm.running_var]);
        both.map(|statistic| statistic.value_sync().inner())
            .collect()
    }

    pub fn without_norm(self) -> Self {
        Self { norm: None, ..self }
    }

    pub fn set_statistics(&self, statistics: &[Tensor<1>]) {
        if let (Some(norm), [mean, var]) = (&self.norm, statistics) {
            for (statistic, value) in [(&norm.running_mean, mean), (&norm.running_var, var)] {
                let value = Tensor::from_inner(value.clone());
                statistic.value_sync();
                statistic.update(value);
                statistic.value_sync();
            }
        }
    }
}
