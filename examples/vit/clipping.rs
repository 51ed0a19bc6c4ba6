//! Clipping by the global norm for Burn's `Learner`, which has no option for it. The model clips in `TrainStep::optimize`. A
//! `FusedLearner` does not need this.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};

use crate::data::Batch;
use crate::model::Vit;

/// A vision transformer that clips its gradients.
#[derive(Module, Debug)]
pub struct ClippedVit {
    pub vit: Vit,
    #[module(skip)]
    pub max_norm: f64,
}

impl TrainStep for ClippedVit {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        TrainStep::step(&self.vit, batch)
    }

    fn optimize(
        self,
        optimizer: &mut ModuleOptimizer,
        learning_rate: ModuleLearningRate,
        mut gradients: GradientsParams,
    ) -> Self {
        let mut clip = Clip {
            gradients: &mut gradients,
            squares: 0.0,
            coefficient: None,
        };
        self.visit(&mut clip);
        let norm = clip.squares.sqrt();
        if norm > self.max_norm {
            clip.coefficient = Some(self.max_norm / norm);
            self.visit(&mut clip);
        }
        optimizer.step(learning_rate, self, gradients)
    }
}

impl InferenceStep for ClippedVit {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        InferenceStep::step(&self.vit, batch)
    }
}

/// A mapper that measures all gradients; with a coefficient, multiplies them.
struct Clip<'a> {
    gradients: &'a mut GradientsParams,
    squares: f64,
    coefficient: Option<f64>,
}

impl ModuleVisitor for Clip<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(mut gradient) = self.gradients.remove::<D>(param.id) else {
            return;
        };
        match self.coefficient {
            None => self.squares += gradient.clone().square().sum().into_scalar::<f64>(),
            Some(coefficient) => gradient = gradient.mul_scalar(coefficient),
        }
        self.gradients.register(param.id, gradient);
    }
}
