use std::fmt::{Display, Formatter};

use backburn_base::is_cubecl;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleMapper, ModuleVisitor};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::store::ModuleRecord;
use burn::tensor::Device;
use burn::train::{InferenceStep, LearnerModel, TrainOutput, TrainStep};

use super::swap_slot::SwapSlot;
use crate::parameters::as_inner;
use crate::record;
use crate::weights::fork_quantized;

/// A wrapper of the user's model for Burn's training during [`launch_fused`](super::LaunchFused::launch_fused).
///
/// It has the paths, records and display of the user's model. Its name
/// appears in the [type of the builder](super#the-type-of-the-builder), `SupervisedTraining<FusedModel<M>>`,
/// which Rust infers.
#[derive(Clone, Debug)]
pub struct FusedModel<M> {
    model: M,
    swap_slot: SwapSlot<M>,
}

impl<M> FusedModel<M> {
    pub(super) fn new(model: M) -> Self {
        let swap_slot = SwapSlot::new();
        Self { model, swap_slot }
    }

    pub(super) fn into_inner(self) -> M {
        self.model
    }

    pub(super) fn swap_slot(&self) -> &SwapSlot<M> {
        &self.swap_slot
    }
}

impl<M: LearnerModel> TrainStep for FusedModel<M> {
    type Input = <M as TrainStep>::Input;
    type Output = <M as TrainStep>::Output;

    fn step(&self, item: Self::Input) -> TrainOutput<Self::Output> {
        TrainStep::step(&self.model, item)
    }

    fn optimize(
        self,
        optimizer: &mut ModuleOptimizer,
        learning_rate: ModuleLearningRate,
        gradients: GradientsParams,
    ) -> Self {
        let Self { model, swap_slot } = self;
        let model = match swap_slot.swap(model, optimizer) {
            Ok(model) => model,
            Err(model) => model.optimize(optimizer, learning_rate, gradients),
        };
        Self { model, swap_slot }
    }
}

impl<M: LearnerModel> InferenceStep for FusedModel<M> {
    type Input = <M as InferenceStep>::Input;
    type Output = <M as InferenceStep>::Output;

    fn step(&self, item: Self::Input) -> Self::Output {
        InferenceStep::step(&self.model, item)
    }
}

impl<M: Display> Display for FusedModel<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.model.fmt(f)
    }
}

impl<M: Module> Module for FusedModel<M> {
    as_inner!(model);

    fn fork(self, device: &Device) -> Self {
        let model = fork_quantized(self.model, device);
        Self { model, ..self }
    }

    fn into_record(self) -> ModuleRecord {
        // The learner saves the record on another thread, during the next steps.
        let is_asynchronous = self.devices().iter().any(is_cubecl);
        let record = self.model.into_record();
        match is_asynchronous {
            true => record::read_model_into_host(record),
            false => record,
        }
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.model.visit(visitor);
    }

    fn map<P: ModuleMapper>(self, mapper: &mut P) -> Self {
        let model = self.model.map(mapper);
        Self { model, ..self }
    }
}
