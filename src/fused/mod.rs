mod averages;
mod backward;
mod change;
mod configure;
mod dry_run;
mod full_precision;
mod policies;
mod replicas;
mod resume;
mod run;
mod step;
mod two_passes;
mod work;

use std::collections::HashSet;
use std::fmt::{Display, Formatter};
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};

use crate::config::FusedConfig;
#[cfg(feature = "cubecl")]
use crate::device::is_cubecl;
use crate::error::FusedError;
use crate::layout::Layout;
#[cfg(feature = "cubecl")]
use crate::memory;
use crate::pass::Session;
use crate::policy::{Policies, Unconfirmed, Update};
use crate::record;
use crate::report::StepReport;
use crate::tap::Census;
use crate::weights::{FusedForm, Role};

#[cfg(feature = "train")]
pub(crate) use policies::in_state;
pub use replicas::{FusedReplicas, RankBytes};
pub(crate) use resume::{Records, Unfit};

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
    session: Arc<Session>,
    report: StepReport,
    told: HashSet<ParamId>,
    policies: Policies,
    config: FusedConfig,
    /// Of the last step with two passes: whether they saw the same random numbers.
    unconfirmed: Unconfirmed,
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
    /// holds a trainable parameter twice, or was cloned out of a fused step. If one of its devices
    /// is not there, or does not compute what it should in the float type of a parameter
    /// ([`check_device`](crate::check_device)).
    pub fn try_new(model: M, optimizer: ModuleOptimizer) -> Result<Self, FusedError> {
        let session = Arc::new(Session::new(Update::new(optimizer)));
        let fused = Self::with_session(model, session, Layout::default())?;
        log::info!("{fused}");
        #[cfg(feature = "cubecl")]
        if fused.form.module.devices().iter().any(is_cubecl) {
            memory::recommend_size_match(fused.form.views().bytes());
        }
        Ok(fused)
    }

    fn with_session(model: M, session: Arc<Session>, layout: Layout) -> Result<Self, FusedError> {
        let form = FusedForm::new(model, &session, Arc::new(layout))?;
        Ok(Self::of(form, session))
    }

    fn of(form: FusedForm<M>, session: Arc<Session>) -> Self {
        Self {
            form,
            session,
            report: StepReport::default(),
            told: HashSet::new(),
            policies: Policies::default(),
            config: FusedConfig::default(),
            unconfirmed: Unconfirmed::default(),
        }
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
        self.form.valid(false)
    }

    /// Takes the fusion apart into an ordinary model and Burn's optimizer with its state.
    ///
    /// Gradients that were accumulated and not used are dropped.
    pub fn into_parts(self) -> (M, ModuleOptimizer) {
        let model = self.model();
        // The views and the pass go with `self`, so the clone ends up as the only owner.
        let optimizer = self.session.update().optimizer();
        (model, optimizer)
    }

    /// The state of the optimizer as Burn records it, and as it is now: a record of Burn's from a CubeCL device is read
    /// when it is saved, and shows what has been written in place by then.
    ///
    /// # Panics
    ///
    /// If such a device has failed and can't be read, with what it says.
    pub fn to_record(&self) -> OptimizerRecord {
        let record = self.session.update().to_record();
        match self.is_read_late() {
            true => record::read_at_once(record),
            false => record,
        }
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
        let mut update = self.session.update();
        let loaded = record::load(record, &update.optimizer(), &self.form.module)?;
        update.replace(loaded);
        drop(update);
        self.begin_group();
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
        self.session.set_census(census);
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

    /// The current model for inference, with the averages of its weights.
    #[cfg(feature = "train")]
    pub(crate) fn valid_averaged(&self) -> M {
        self.form.valid(true)
    }

    /// Puts another optimizer in, state and all, and returns the one before.
    #[cfg(feature = "train")]
    pub(crate) fn replace_optimizer(&mut self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        let before = self.session.update().replace(optimizer);
        self.restore_policies();
        before
    }
}

/// A second training from here: the same values, optimizer state, policies and accumulated gradients, in
/// tensors that both share until one of them is updated. Hooks are shared for good, and so are the running
/// statistics of normalization layers, as by all clones of a Burn model.
impl<M: Module> Clone for FusedOptimizer<M> {
    fn clone(&self) -> Self {
        let session = Arc::new(Session::new(self.session.update().again()));
        let layout = self.form.layout().again();
        let clone = layout.and_then(|layout| Self::with_session(self.model(), session, layout));
        let mut clone = clone.unwrap_or_else(|error| panic!("{error}"));
        clone.place_states(&self.config);
        clone.form.views().copy_accumulated(self.form.views());
        clone.policies = self.policies.split();
        clone.keep_policies();
        clone.report = self.report.clone();
        clone.told = self.told.clone();
        clone.config = self.config.clone();
        clone.average();
        clone.count_gradients(self.session.census().is_some());
        clone
    }
}

impl<M: Module> Display for FusedOptimizer<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (released, elements) = self.form.inventory().count(Role::Released);
        write!(
            f,
            "FusedOptimizer: {released} parameters ({elements} elements) stepped in the backward \
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
