mod backward;
mod policies;
mod retained;
mod run;
mod step;

use std::collections::HashSet;
use std::fmt::{Display, Formatter};
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::optim::{GradientsAccumulator, ModuleOptimizer, OptimizerRecord};
use burn::tensor::Device;

use crate::error::FusedError;
use crate::gradient_checkpointing::GradientCheckpointingConfig;
use crate::pass::Pass;
use crate::policy::Policies;
use crate::record;
use crate::report::StepReport;
use crate::slot::{FusedForm, Role};
use crate::tap::Census;

#[cfg(feature = "train")]
pub(crate) use policies::in_state;

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
    form: FusedForm<M>,
    pass: Arc<Pass>,
    retained_gradients: GradientsAccumulator<M>,
    report: StepReport,
    told: HashSet<ParamId>,
    policies: Policies,
    gradient_checkpointing: GradientCheckpointingConfig,
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
        let fused = Self {
            form: FusedForm::new(model, &pass)?,
            pass,
            retained_gradients: GradientsAccumulator::new(),
            report: StepReport::default(),
            told: HashSet::new(),
            policies: Policies::default(),
            gradient_checkpointing: GradientCheckpointingConfig::default(),
        };
        log::info!("{fused}");
        Ok(fused)
    }

    /// An ordinary Burn model with the current values: to save, to validate, to keep.
    ///
    /// The tensors are shared, not copied. If the model is kept across steps, each parameter is
    /// copied once when it is next updated, and the model keeps the old values. The running
    /// statistics of normalization layers are shared with the model in training, as in every clone
    /// of a Burn model.
    pub fn model(&self) -> M {
        self.form.ordinary()
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
    /// fused.change_model(|model| model.freeze_group(ParamGroup::from_predicate("bias")));
    /// ```
    ///
    /// The optimizer keeps the state of every parameter. Accumulated gradients are dropped, but for those
    /// in the optimizer state.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new) on the model that `change` returns; nothing has changed then.
    pub fn change_model(&mut self, change: impl FnOnce(M) -> M) {
        let changed = Self::with_pass(change(self.model()), self.pass.clone());
        let changed = changed.unwrap_or_else(|error| panic!("{error}"));
        *self = Self {
            policies: std::mem::take(&mut self.policies),
            gradient_checkpointing: std::mem::take(&mut self.gradient_checkpointing),
            ..changed
        };
    }

    /// Moves the model to `device` and trains it there, as [`Module::fork`]. The optimizer state
    /// follows at the next step.
    ///
    /// # Panics
    ///
    /// If this build does not cover the backend of `device`.
    pub fn fork(&mut self, device: &Device) {
        self.change_model(|model| model.fork(device));
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
    /// does not have, or of another shape. If it was saved by another optimizer, whose state this one
    /// can't load. The state is unchanged then. (`Adam` and `AdamW` keep the same, and can't be told
    /// apart.)
    ///
    /// Burn loads states in the default float type of its default device, so those of f64 parameters
    /// lose precision. The optimizers of [`backburn::optim`](crate::optim) take them to the type of the
    /// parameter with the next step; Burn's own panic then, if it is another.
    pub fn try_load_record(&mut self, record: OptimizerRecord) -> Result<(), FusedError> {
        let mut update = self.pass.update();
        update.optimizer = record::load(record, &update.optimizer, &self.form.module)?;
        drop(update);
        self.restore_policies();
        self.form
            .slots()
            .for_each(|slot| slot.expect_first_update());
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
    pub fn num_released(&self) -> usize {
        self.form.inventory().count(Role::Released).0
    }

    /// The number of parameters stepped at the end of the pass, from an ordinary gradient: the
    /// trainable ones that carry a reparameterization, such as an unfrozen LoRA base.
    pub fn num_retained(&self) -> usize {
        self.form.inventory().count(Role::Retained).0
    }

    /// The number of parameters that are not trained: frozen ones and running statistics.
    pub fn num_frozen(&self) -> usize {
        self.form.inventory().count(Role::Frozen).0
    }

    /// The structure of the model, without the values of its trainable parameters.
    #[cfg(feature = "train")]
    pub(crate) fn hollow(&self) -> M {
        self.form.hollow()
    }

    /// Puts another optimizer in, state and all, and returns the one before.
    #[cfg(feature = "train")]
    pub(crate) fn replace_optimizer(&mut self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        std::mem::replace(&mut self.pass.update().optimizer, optimizer)
    }
}

impl<M: Module> Display for FusedOptimizer<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (tapped, elements) = self.form.inventory().count(Role::Released);
        write!(
            f,
            "FusedOptimizer: {tapped} parameters ({elements} elements) stepped in the backward \
             pass, {} left to its end, {} frozen",
            self.num_retained(),
            self.num_frozen()
        )
    }
}

impl<M: Module> std::fmt::Debug for FusedOptimizer<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        Display::fmt(self, f)
    }
}
