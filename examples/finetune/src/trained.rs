//! Weights of a finished training, with the numbers that are written.

use std::path::Path;

use anyhow::Result;
use backburn::FusedOptimizer;
use burn::module::Module;
use burn::tensor::DType;

use crate::decoder::Decoder;
use crate::evaluation::Evaluation;
use crate::model_files;
use crate::options::{Options, Weights};
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
    Adapters(Box<FusedOptimizer<Decoder>>),
    /// The inference model with the numbers of the file.
    Whole(Box<Decoder>),
}

impl Trained {
    /// Returns the result of a training. The optimizer states of a whole model are freed before the model is rounded to `dtype`.
    pub fn of(
        options: &Options,
        fused: FusedOptimizer<Decoder>,
        dtype: DType,
        evaluation: &Evaluation<'_>,
    ) -> Self {
        let trained_loss = evaluation.loss(&fused.valid());
        if options.method.has_adapters() && !options.merge {
            return Self {
                weights: TrainedWeights::Adapters(Box::new(fused)),
                trained_loss,
                loss: trained_loss,
            };
        }
        let trained: Decoder = match options.merge {
            true => fused.model().materialize(),
            // A file in f32 has all bits of weights in bf16, too.
            false if dtype == DType::F32 => fused.full_precision_model(),
            false => fused.model(),
        };
        let model = trained.valid();
        drop((trained, fused));
        let model = rounded(model, dtype);
        let is_exact = dtype == DType::F32 && options.weights == Weights::F32;
        let loss = match is_exact {
            true => trained_loss,
            false => evaluation.loss(&model),
        };
        Self {
            weights: TrainedWeights::Whole(Box::new(model)),
            trained_loss,
            loss,
        }
    }

    /// Returns the names of the files, with those of the `base`.
    pub fn files(&self, base: &Path) -> Vec<&'static str> {
        match self.weights {
            TrainedWeights::Adapters(_) => model_files::adapter_files(base),
            TrainedWeights::Whole(_) => model_files::model_files(base),
        }
    }

    /// Writes the files to `folder`.
    pub fn write(&self, options: &Options, folder: &Path, dtype: DType) -> Result<()> {
        let base = &options.model;
        match &self.weights {
            TrainedWeights::Adapters(fused) => {
                model_files::write_adapters(&fused.model(), &options.adapters(), base, folder)
            }
            TrainedWeights::Whole(model) => model_files::write_model(model, base, folder, dtype),
        }
    }

    /// Returns the model to sample from.
    pub fn inference(&self) -> Decoder {
        match &self.weights {
            TrainedWeights::Adapters(fused) => fused.valid(),
            TrainedWeights::Whole(model) => Decoder::clone(model),
        }
    }
}
