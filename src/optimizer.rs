use std::collections::{HashMap, HashSet};
use std::fmt::{Display, Formatter};
use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ParamId};
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::Device;

use crate::error::FusedError;
use crate::loss::Loss;
use crate::pass::{Goal, Pass, Phase};
use crate::record;
use crate::report::StepReport;
use crate::slot::{Inventory, Role, Slot, attach, hollow, restore};
use crate::tap::Census;

/// A model and its optimizer, fused: each parameter is stepped during the backward pass, the moment
/// its gradient is complete, and the gradient is released.
///
/// The training result is that of Burn's [`ModuleOptimizer::step`] after a whole backward pass, bit
/// for bit on CPU backends, without the memory of the gradients.
///
/// ```
/// use backburn::FusedOptimizer;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamWConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
///
/// let device = Device::flex().autodiff();
/// let model: Linear = LinearConfig::new(8, 1).init(&device);
/// let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init());
///
/// for _ in 0..3 {
///     let x = Tensor::<2>::random([16, 8], Distribution::Default, &device);
///     let loss = fused.step(1e-3, |model| model.forward(x).powi_scalar(2).mean());
///     println!("{}", loss.into_scalar::<f32>());
/// }
/// let model = fused.model(); // an ordinary Burn model
/// # let _: Linear = model;
/// ```
///
/// Inside the closure the model is in *fused form*: its parameters are read through
/// [`Param::val`](burn::module::Param::val), as every layer of Burn does. It must not be cloned out
/// of the closure or saved there; [`model`](Self::model) gives an ordinary model at any time.
pub struct FusedOptimizer<M: Module> {
    fused: M,
    hollow: M,
    inventory: Inventory,
    slots: HashMap<ParamId, Arc<dyn Slot>>,
    pass: Arc<Pass>,
    left_gradients: GradientsAccumulator<M>,
    report: StepReport,
    told: HashSet<ParamId>,
}

impl<M: Module> FusedOptimizer<M> {
    /// Fuses `optimizer` into the backward pass of `model`.
    ///
    /// Lazy parameters are initialized, in module order. The state `optimizer` already holds is
    /// kept.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_new`](Self::try_new) returns.
    pub fn new(model: M, optimizer: ModuleOptimizer) -> Self {
        Self::try_new(model, optimizer).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// If the model is not on an autodiff device, is on a backend that this build does not cover,
    /// holds a trainable parameter twice, or was cloned out of a fused step.
    pub fn try_new(model: M, optimizer: ModuleOptimizer) -> Result<Self, FusedError> {
        Self::with_pass(model, Arc::new(Pass::new(optimizer)))
    }

    fn with_pass(model: M, pass: Arc<Pass>) -> Result<Self, FusedError> {
        let inventory = Inventory::take(&model)?;
        let hollow = hollow(model.clone(), &inventory);
        let (fused, slots) = attach(model, &inventory, &pass);
        let fused = Self {
            fused,
            hollow,
            inventory,
            slots,
            pass,
            left_gradients: GradientsAccumulator::new(),
            report: StepReport::default(),
            told: HashSet::new(),
        };
        log::info!("{fused}");
        Ok(fused)
    }

    /// One training step: forward, backward, update.
    ///
    /// `forward` computes the loss, a tensor of any rank, or the loss and anything else as a tuple.
    /// The backward pass runs after it has returned, and each parameter is stepped with
    /// `learning_rate` as its gradient completes. Returns what `forward` returned, the loss
    /// detached.
    ///
    /// Gradients [accumulated](Self::accumulate) before are added, and used up.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_step`](Self::try_step) returns; if `forward` runs a
    /// backward pass itself or has run one over its loss before; if it reads a parameter around
    /// `Param::val()`. A panic in `forward` is passed on. In all these cases every parameter and
    /// state is unchanged and the step can be repeated.
    ///
    /// If the optimizer panics (Muon on a parameter that is not of rank 2), the parameters whose
    /// gradient had not arrived, and that parameter if it was its first update, are unchanged.
    pub fn step<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl FnOnce(&M) -> L,
    ) -> L {
        self.try_step(learning_rate, forward)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`step`](Self::step).
    ///
    /// # Errors
    ///
    /// If the loss depends on no trainable parameter. Nothing has changed then.
    pub fn try_step<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<L, FusedError> {
        self.pass.set_learning_rate(learning_rate.into());
        self.pass_of_loss(Goal::Update, forward)
    }

    /// Forward and backward without an update: the gradients are added to those accumulated since
    /// the last [`step`](Self::step), which uses them up.
    ///
    /// Equal to Burn's [`GradientsAccumulator`]. The accumulated gradients take the memory of the
    /// parameters, as they do in Burn.
    ///
    /// # Panics
    ///
    /// As [`step`](Self::step).
    pub fn accumulate<L: Loss>(&mut self, forward: impl FnOnce(&M) -> L) -> L {
        self.pass_of_loss(Goal::Accumulate, forward)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// An ordinary Burn model with the current values: to save, to validate, to keep.
    ///
    /// The tensors are shared, not copied. If the model is kept across steps, each parameter is
    /// copied once when it is next updated, and the model keeps the old values. The running
    /// statistics of normalization layers are shared with the model in training, as in every clone
    /// of a Burn model.
    pub fn model(&self) -> M {
        restore(
            self.hollow.clone(),
            &self.fused,
            &self.inventory,
            &self.slots,
        )
    }

    /// The current model for inference, without autodiff: [`Module::valid`] of
    /// [`model`](Self::model).
    pub fn valid(&self) -> M {
        self.model().valid()
    }

    /// Takes the fusion apart into an ordinary model and Burn's optimizer with its state.
    ///
    /// Gradients that were accumulated and not used are dropped.
    pub fn into_parts(self) -> (M, ModuleOptimizer) {
        let model = self.model();
        // The slots and the pass go with `self`, so the clone ends up as the only owner.
        let optimizer = self.pass.update().optimizer.clone();
        (model, optimizer)
    }

    /// Changes the model between two steps: freeze or thaw parameters, load other weights.
    ///
    /// ```
    /// # use backburn::FusedOptimizer;
    /// # use burn::{module::Module, module::ParamGroup, nn::LinearConfig, optim::SgdConfig, tensor::Device};
    /// # let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
    /// # let mut fused = FusedOptimizer::new(model, SgdConfig::new().init());
    /// fused.map(|model| model.freeze_group(ParamGroup::from_predicate("bias")));
    /// ```
    ///
    /// The optimizer keeps the state of every parameter. Accumulated gradients are dropped.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new) on the model that `change` returns; nothing has changed then.
    pub fn map(&mut self, change: impl FnOnce(M) -> M) {
        let changed = Self::with_pass(change(self.model()), self.pass.clone());
        *self = changed.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Moves the model to `device` and trains it there, as [`Module::fork`]. The optimizer state
    /// follows at the next step.
    ///
    /// # Panics
    ///
    /// If this build does not cover the backend of `device`.
    pub fn fork(&mut self, device: &Device) {
        self.map(|model| model.fork(device));
    }

    /// [`fork`](Self::fork) by value.
    #[must_use]
    pub fn to_device(mut self, device: &Device) -> Self {
        self.fork(device);
        self
    }

    /// The state of the optimizer as Burn records it.
    pub fn to_record(&self) -> OptimizerRecord {
        self.pass.update().optimizer.to_record()
    }

    /// Loads the state of the optimizer.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_load_record`](Self::try_load_record) returns.
    pub fn load_record(&mut self, record: OptimizerRecord) {
        self.try_load_record(record)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// The fallible [`load_record`](Self::load_record).
    ///
    /// # Errors
    ///
    /// If the record was saved with another model: it holds a state for a parameter that the model
    /// does not have, or of another rank. The state is unchanged then.
    pub fn try_load_record(&mut self, record: OptimizerRecord) -> Result<(), FusedError> {
        let record = record::checked(record, &self.inventory)?;
        let mut update = self.pass.update();
        update.optimizer = update.optimizer.clone().load_record(record);
        for slot in self.slots.values() {
            slot.expect_first_update();
        }
        Ok(())
    }

    /// What the last pass did.
    pub fn last_step(&self) -> &StepReport {
        &self.report
    }

    /// Whether to count the parameter gradients alive at once
    /// ([`StepReport::gradients_alive`]); off by default, since it takes time in the square of the
    /// number of parameters.
    pub fn count_gradients(&mut self, count: bool) {
        let census = count.then(|| Arc::new(Census::default()));
        self.pass.set_census(census);
    }

    /// The number of parameters stepped during the backward pass.
    pub fn tapped(&self) -> usize {
        self.inventory.count(Role::Tapped).0
    }

    /// The number of parameters stepped at the end of the pass, from an ordinary gradient: the
    /// trainable ones that carry a reparameterization, such as an unfrozen LoRA base.
    pub fn left(&self) -> usize {
        self.inventory.count(Role::Left).0
    }

    /// The number of parameters that are not trained: frozen ones and running statistics.
    pub fn frozen(&self) -> usize {
        self.inventory.count(Role::Frozen).0
    }

    fn pass_of_loss<L: Loss>(
        &mut self,
        goal: Goal,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<L, FusedError> {
        let pass = self.pass.clone();
        let left = self.inventory.left();
        let parameters = self.slots.len() + left.len();

        let loss = self.run(Phase::Forward, goal, |model| {
            let loss = forward(model);
            if !loss.is_tracked() {
                return Err(FusedError::LossNotTracked);
            }
            pass.set_phase(Phase::Backward);
            let (loss, mut gradients) = loss.backward();
            let gradients = GradientsParams::from_params(&mut gradients, model, &left);
            Ok((loss, gradients))
        })?;

        if self.report.without_gradient == parameters && self.report.updated == 0 {
            return Err(FusedError::LossWithoutParameters { parameters });
        }
        Ok(loss)
    }

    /// A pass whose closure runs the backward pass itself, and returns the gradients of the
    /// parameters that are left.
    #[cfg(feature = "train")]
    pub(crate) fn pass_with_backward<R>(
        &mut self,
        learning_rate: Option<ModuleLearningRate>,
        train: impl FnOnce(&M) -> (R, GradientsParams),
    ) -> R {
        let goal = match learning_rate {
            Some(learning_rate) => {
                self.pass.set_learning_rate(learning_rate);
                Goal::Update
            }
            None => Goal::Accumulate,
        };
        self.run(Phase::Backward, goal, |model| Ok(train(model)))
            .expect("the closure does not fail")
    }

    /// The structure of the model, without the values of its trainable parameters.
    #[cfg(feature = "train")]
    pub(crate) fn hollow(&self) -> M {
        self.hollow.clone()
    }

    /// Puts another optimizer in, state and all, and returns the one before.
    #[cfg(feature = "train")]
    pub(crate) fn replace_optimizer(&mut self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        std::mem::replace(&mut self.pass.update().optimizer, optimizer)
    }

    /// Forgets the gradients accumulated so far.
    #[cfg(feature = "train")]
    pub(crate) fn drop_accumulated(&mut self) {
        self.slots.values().for_each(|slot| slot.drop_accumulated());
        self.left_gradients = GradientsAccumulator::new();
    }

    fn run<R>(
        &mut self,
        phase: Phase,
        goal: Goal,
        closure: impl FnOnce(&M) -> Result<(R, GradientsParams), FusedError>,
    ) -> Result<R, FusedError> {
        let (result, ended) = {
            let _running = self.pass.begin(phase, goal);
            // Also when the closure panics: no slot may hold on to a graph.
            let _released = Released(&self.slots);
            let result = closure(&self.fused)?;
            if goal == Goal::Update {
                self.slots.values().for_each(|slot| slot.flush());
            }
            let ended: Vec<_> = self.slots.iter().map(|(id, s)| (*id, s.end())).collect();
            (result, ended)
        };
        let (output, left_gradients) = result;

        let received = ended.iter().filter(|(_, slot)| slot.received).count();
        let without_gradient = self.slots.len() + self.left() - received - left_gradients.len();
        let updated = ended.iter().filter(|(_, slot)| slot.updated).count();
        let copied: Option<Vec<bool>> = ended.iter().map(|(_, slot)| slot.copied).collect();
        self.report = StepReport {
            updated: updated + self.step_left(goal, left_gradients),
            without_gradient,
            copied: copied.map(|copied| copied.into_iter().filter(|copied| *copied).count()),
            gradients_alive: self.pass.census().map(|census| census.take()),
        };
        for (id, slot) in ended {
            if !slot.received && self.told.insert(id) {
                let path = self.slots[&id].path();
                log::warn!("parameter `{path}` got no gradient in this pass");
            }
        }
        Ok(output)
    }

    /// Steps or accumulates the parameters that are ordinary leaves; returns how many were stepped.
    fn step_left(&mut self, goal: Goal, gradients: GradientsParams) -> usize {
        self.left_gradients.accumulate(&self.fused, gradients);
        if goal == Goal::Accumulate {
            return 0;
        }
        let gradients = self.left_gradients.grads();
        let updated = gradients.len();
        if updated > 0 {
            let mut update = self.pass.update();
            let learning_rate = update.learning_rate.clone();
            let fused = self.fused.clone();
            self.fused = update.optimizer.step(learning_rate, fused, gradients);
        }
        updated
    }
}

/// Ends the pass in every slot when dropped.
struct Released<'a>(&'a HashMap<ParamId, Arc<dyn Slot>>);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        for slot in self.0.values() {
            slot.end();
        }
    }
}

impl<M: Module> Display for FusedOptimizer<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (tapped, elements) = self.inventory.count(Role::Tapped);
        write!(
            f,
            "FusedOptimizer: {tapped} parameters ({elements} elements) stepped in the backward \
             pass, {} left to its end, {} frozen",
            self.left(),
            self.frozen()
        )
    }
}

impl<M: Module> std::fmt::Debug for FusedOptimizer<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        Display::fmt(self, f)
    }
}
