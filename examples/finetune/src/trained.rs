//! Weights of a finished training, with the numbers that are written.

use std::path::Path;

use anyhow::Result;
use backburn::optim::AdamWConfig;
use backburn::{FusedOptimizer, Plan};
use burn::module::Module;
use burn::tensor::{DType, FloatDType};

use crate::conversion::{self, Conversion};
use crate::decoder::Decoder;
use crate::evaluation::Evaluation;
use crate::model_files;
use crate::options::Options;
use crate::rounding::rounded;

/// A trained model, and its losses on the rows that are held out.
pub struct Trained {
    weights: TrainedWeights,
    /// Loss of the weights as they were trained.
    pub trained_loss: Option<f64>,
    /// Loss of the weights as they are written.
    pub loss: Option<f64>,
}

enum TrainedWeights {
    AsTrained(Box<FusedOptimizer<Decoder>>),
    /// The inference model with the numbers of the file.
    Converted(Box<Decoder>),
}

impl Trained {
    /// Returns the result of a training, for a file in `dtype`.
    pub fn of(
        options: &Options,
        plan: Option<&Plan<AdamWConfig>>,
        fused: FusedOptimizer<Decoder>,
        dtype: DType,
        evaluation: &Evaluation<'_>,
    ) -> Result<Self> {
        let conversion = Conversion::of(options, plan, dtype);
        let dtype_in_training = conversion::weights(options, plan);
        let (fused, trained_loss) = evaluation.loss_in_f32(fused, dtype_in_training)?;
        let trained = match conversion {
            Conversion::Nothing => {
                return Ok(Self {
                    weights: TrainedWeights::AsTrained(Box::new(fused)),
                    trained_loss,
                    loss: trained_loss,
                });
            }
            Conversion::LowBits => fused.full_precision_model(),
            Conversion::Rounding => fused.into_parts().0,
            // Burn adds an adapter to its weight in the type of the adapter, here bf16.
            Conversion::Merge if dtype_in_training == FloatDType::BF16 => {
                fused.full_precision_model().materialize()
            }
            Conversion::Merge => fused.into_parts().0.materialize(),
        };
        let model = trained.valid();
        // Each tensor is freed when it is rounded.
        drop(trained);
        let model = rounded(model, dtype);
        Ok(Self {
            loss: evaluation.loss(&model),
            weights: TrainedWeights::Converted(Box::new(model)),
            trained_loss,
        })
    }

    /// Writes the files to `folder`.
    pub fn write(&self, options: &Options, folder: &Path, dtype: DType) -> Result<()> {
        let base = &options.model;
        match &self.weights {
            TrainedWeights::AsTrained(fused) if options.writes_adapters() => {
                model_files::write_adapters(&fused.model(), &options.adapters(), base, folder)
            }
            TrainedWeights::AsTrained(fused) => {
                model_files::write_model(&fused.model(), base, folder, dtype)
            }
            TrainedWeights::Converted(model) => {
                model_files::write_model(model, base, folder, dtype)
            }
        }
    }

    /// Returns the model to sample from.
    pub fn inference(&self) -> Decoder {
        match &self.weights {
            TrainedWeights::AsTrained(fused) => fused.valid(),
            TrainedWeights::Converted(model) => Decoder::clone(model),
        }
    }
}
