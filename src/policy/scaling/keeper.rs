use std::sync::Arc;

use burn::module::{Param, ParamGroup, ParamId};
use burn::optim::{
    GradientsParams, LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource,
};
use burn::tensor::{Device, Tensor};
use parking_lot::Mutex;

use super::scaler::ScaleState;

/// The parameter under which a record of the optimizer holds the loss scale.
pub(crate) const KEEPER_ID: u64 = u64::from_be_bytes(*b"lossscal");

/// The loss scale as the optimizer state of a parameter that no model has: Burn's optimizers, records
/// and checkpoints carry it along, and those without loss scaling pass it over.
#[derive(Clone)]
pub(super) struct Keeper {
    current: Arc<Mutex<ScaleState>>,
}

impl Keeper {
    /// The "learning rates" that say which way the scale goes.
    pub(super) const SAVE: LearningRate = 0.0;
    pub(super) const RESTORE: LearningRate = 1.0;

    pub(super) fn new(current: Arc<Mutex<ScaleState>>) -> Self {
        Self { current }
    }

    pub(super) fn join(self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        let group = ParamGroup::from_ids(vec![KEEPER_ID.into()]);
        optimizer.with_group(group, self, None)
    }

    /// Lets `optimizer` step the parameter that stands for the scale.
    pub(super) fn touch(optimizer: &mut ModuleOptimizer, device: &Device, way: LearningRate) {
        let id = ParamId::from(KEEPER_ID);
        let nothing = Tensor::<1>::zeros([1], &device.clone().inner());
        let mut gradients = GradientsParams::new();
        gradients.register(id, nothing.clone());
        optimizer.step(
            way,
            Param::initialized(id, Tensor::from_inner(nothing)),
            gradients,
        );
    }
}

impl Optimizer for Keeper {
    type State<const D: usize> = ScaleState;

    fn step<const D: usize>(
        &self,
        way: LearningRate,
        nothing: Tensor<D>,
        _gradient: Tensor<D>,
        kept: Option<ScaleState>,
    ) -> (Tensor<D>, Option<ScaleState>) {
        let mut current = self.current.lock();
        if let (Self::RESTORE, Some(kept)) = (way, kept) {
            *current = kept;
        }
        (nothing, Some(*current))
    }

    fn to_device<const D: usize>(state: ScaleState, _device: &Device) -> ScaleState {
        state
    }
}

impl RecordState for ScaleState {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        sink.push_scalar(prefix, "loss_scale", self.scale.into());
        sink.push_scalar(prefix, "good_steps", self.good_steps.into());
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, _device: &Device) -> Option<Self> {
        let scale = source.take_scalar(prefix, "loss_scale")?;
        let good_steps = source.take_scalar(prefix, "good_steps")?;
        Some(Self {
            scale: scale.try_into().ok()?,
            good_steps: good_steps.try_into().ok()?,
        })
    }
}
