use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use parking_lot::Mutex;

use crate::cast::try_cast;
use crate::caught::catch;
use crate::config::FusedConfig;
use crate::device::{check_device, warm_threads};
use crate::estimate::{self, parameters};
use crate::fused::FusedOptimizer;
use crate::loss::Loss;
use crate::memory::{self, MemoryError};
use crate::optim::SgdConfig;
use crate::parameters::{ModelKey, list};

use super::attempt::Climber;
use super::budget::Budget;
use super::choice::Facts;
use super::climb::AT_FIRST;
use super::error::PlanError;
use super::measured::{APART, Measured};
use super::optimizer::PlannedOptimizer;
use super::recorded::held;
use super::technique::Technique;
use super::trial::Trial;
use super::width::{Footing, Width};

/// Two that measure at once would measure each other.
static MEASURING: Mutex<()> = Mutex::new(());

/// Finds the smallest change with which a training fits a number of bytes.
///
/// It takes how the model is made, since one that does not fit can't be handed over. [`measure`](Self::measure) runs forward and backward
/// passes over parts of the batch, within the budget, and [`Measured::choose`] takes what costs least.
///
/// ```
/// use backburn::memory::RecordingAllocator;
/// use backburn::optim::AdamWConfig;
/// use backburn::{Planner, gradient_checkpointing};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
///
/// #[global_allocator] // On a device with memory of its own, leave this out.
/// static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();
///
/// let device = Device::flex().autodiff();
/// let init = || (0..6).map(|_| LinearConfig::new(64, 64).init(&device)).collect::<Vec<Linear>>();
/// let loss = |model: &Vec<Linear>, items| {
///     let x = Tensor::<2>::ones([items, 64], &device); // as many items of a batch of yours
///     let block = |linear: &Linear, x| linear.forward(x).tanh();
///     model.iter().fold(x, |x, linear| gradient_checkpointing(linear, x, block)).mean()
/// };
///
/// let planner = Planner::new(init, AdamWConfig::new()).with_batch(512);
/// let measured = planner.measure(loss, 16_000_000)?;
/// println!("{measured}"); // the ladder
/// let plan = measured.choose(16_000_000)?;
///
/// let mut fused = plan.fuse(init);
/// for _ in 1..plan.accumulation {
///     fused.accumulate(|model| loss(model, plan.batch) / plan.accumulation as f32);
/// }
/// fused.step(1e-3, |model| loss(model, plan.batch) / plan.accumulation as f32);
/// # Ok::<(), backburn::PlanError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Planner<I, O> {
    init: I,
    optimizer: O,
    batch: usize,
    order: Vec<Technique>,
    config: FusedConfig,
    devices: Vec<Device>,
    progress: fn(&str),
}

impl<M, I, O> Planner<I, O>
where
    M: Module,
    I: Fn() -> M,
    O: PlannedOptimizer,
{
    /// Plans the training of the model that `init` makes, on an autodiff device, with `optimizer`: a config of
    /// [`backburn::optim`](crate::optim), or any [`ModuleOptimizer`](burn::optim::ModuleOptimizer), whose formats stay as they are.
    pub fn new(init: I, optimizer: O) -> Self {
        Self {
            init,
            optimizer,
            batch: 1,
            order: Technique::LEAST_COST.to_vec(),
            config: FusedConfig::new(),
            devices: Vec::new(),
            progress: |_| {},
        }
    }

    /// The number of items in a step; by default one. Micro-batches are parts of equal size.
    #[must_use]
    pub fn with_batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// What may be done, and in which order it is tried: by default [`Technique::LEAST_COST`].
    #[must_use]
    pub fn with_order(mut self, order: &[Technique]) -> Self {
        self.order = order.to_vec();
        self
    }

    /// How it is trained beside: clipping, loss scaling and the like. Blocks that run twice, and offload, are the plan's.
    #[must_use]
    pub fn with_config(mut self, config: FusedConfig) -> Self {
        self.config = config;
        self
    }

    /// Where the model computes, if it is not where it is made: a device with memory of its own, from which states and updates can
    /// wait on the host. If there are several, they are alike, and the model can be trained on as many of them as it takes;
    /// passes are measured on the first.
    #[must_use]
    pub fn with_devices(mut self, devices: &[Device]) -> Self {
        self.devices = devices.to_vec();
        self
    }

    /// Is told what is tried, before each pass: for a model whose passes take their time.
    #[must_use]
    pub fn with_progress(mut self, progress: fn(&str)) -> Self {
        self.progress = progress;
        self
    }

    /// Measures what passes of the model hold, over parts of the batch from one item on, as long as they stay within `budget`.
    /// `loss` computes the loss of so many items.
    ///
    /// Every part is run with blocks that keep their activations, and with blocks that run twice; a pass that goes beyond the budget, or is
    /// feared to, ends where it reads its next parameter. What is chosen, and what may just fit, is run as it would be, quick passes in steps
    /// that change no weight. Weights in bf16, and on the host, are tried if nothing fits without. Random numbers are drawn: seed the device
    /// afterwards. The memory that is measured is that of the whole process, or of the device: train nothing beside it.
    ///
    /// # Errors
    ///
    /// If the budget or the batch is zero, or the budget is not known; if the model can't be fused, is on a device that is not there, or the
    /// loss does not depend on it; if the program does not run on the [`RecordingAllocator`](crate::memory::RecordingAllocator) and the
    /// device does not tell what its pools hold, or something else records or plans.
    ///
    /// # Panics
    ///
    /// If `loss` does.
    pub fn measure<L: Loss>(
        &self,
        loss: impl Fn(&M, usize) -> L,
        budget: impl Into<Budget>,
    ) -> Result<Measured<O>, PlanError> {
        if self.batch == 0 {
            return Err(PlanError::NoBatch);
        }
        let alone = MEASURING.try_lock();
        let _alone = alone.ok_or(MemoryError::AlreadyRecording)?;
        let model = (self.init)();
        let devices = match &self.devices[..] {
            [] => model.devices().into_iter().take(1).collect(),
            devices => devices.to_vec(),
        };
        for device in &devices {
            check_device(device, FloatDType::F32)?;
        }
        let device = devices.into_iter().next().unwrap_or_default().inner();
        let budget = budget.into().bytes(&device)?;
        warm_threads(&device);
        let before = held(&device)?;
        let facts = Facts::new(self.batch, self.config.clone().with_offload(None));
        let mut measured = Measured::new(
            ModelKey::of(&model),
            budget,
            &self.order,
            self.optimizer.clone(),
            device.clone(),
            self.devices.len(),
            facts,
        );
        let sizes: Vec<_> = list(&model)
            .into_iter()
            .map(|it| (it.param.shape().num_elements(), !it.param.is_initialized()))
            .collect();
        drop(model);
        for footing in measured.footings() {
            if measured.best(measured.budget).is_some() {
                break;
            }
            let least = before + self.least(footing, &sizes);
            if least > budget {
                measured.too_large.push((footing, least));
                continue;
            }
            if !footing.in_bf16 {
                self.width(&mut measured, footing, &device, &loss)?;
                continue;
            }
            match catch(|| self.width(&mut measured, footing, &device, &loss)) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => measured.refuse_bf16(&error.to_string()),
                Err(panic) => measured.refuse_bf16(panic.text().unwrap_or("it panics")),
            }
        }
        Ok(measured)
    }

    /// Bytes of weights of these `sizes` while they come into being, until a pass begins.
    fn least(&self, footing: Footing, sizes: &[(usize, bool)]) -> usize {
        // They are made on the host, and stay there.
        if footing.on_host && !self.devices.is_empty() {
            return AT_FIRST;
        }
        let largest = sizes.iter().map(|(elements, _)| elements).max();
        // What is there already is counted.
        let made = sizes
            .iter()
            .filter(|(_, is_lazy)| *is_lazy || footing.in_bf16);
        let made: usize = made.map(|(elements, _)| elements).sum();
        let weights = made * if footing.in_bf16 { 2 } else { 4 };
        // One is drawn, and cast, beside the others.
        weights + 8 * largest.unwrap_or(&0) + AT_FIRST
    }

    /// Measures the model with weights of this footing.
    fn width<L: Loss>(
        &self,
        measured: &mut Measured<O>,
        footing: Footing,
        device: &Device,
        loss: &impl Fn(&M, usize) -> L,
    ) -> Result<(), PlanError> {
        let before = held(device)?;
        (self.progress)(&format!("making the model, weights {footing}"));
        let mut model = (self.init)();
        if let Some(dtype) = footing.dtype() {
            model = try_cast(model, dtype)?;
        }
        // What the optimizer holds is reckoned.
        let stateless = SgdConfig::new();
        let mut fused = FusedOptimizer::try_new(model, stateless.init())?;
        let config = measured
            .facts
            .config
            .clone()
            .with_offload(footing.offload());
        match self.devices.first() {
            Some(device) => fused.try_set_config_on(config, device)?,
            None => fused.try_set_config(config)?,
        }
        let parameters = parameters(&fused.model());
        let held = memory::live(device)?.saturating_sub(before);
        let mut width = Width::new(footing, parameters, held);
        width.notes = estimate::measure(&stateless.init(), &width.parameters, true)?.sum();
        for (states, weights) in measured.formats(footing) {
            if let Some(optimizer) = self.optimizer.formatted(states, weights) {
                let optimizer = optimizer.build();
                match estimate::measure(&optimizer, &width.parameters, O::SHAPE_TELLS) {
                    Ok(held) => width.states.push(((states, weights), held)),
                    Err(error) if (states, weights) == (None, None) => return Err(error.into()),
                    Err(error) => log::info!("{error}"),
                }
            }
        }
        let beside = measured.least_beside(&width);
        let room = measured.budget.saturating_sub(beside);
        let mut climber = Climber {
            fused: &mut fused,
            loss,
            device,
            budget: measured.budget,
            room,
            largest: width.largest(),
            spread: 0.0,
            unseen: if measured.apart { APART } else { 1.0 },
            ended_at: None,
            progress: self.progress,
        };
        width.passes = climber.climb(self.batch)?;
        width.ended_at = climber.ended_at;
        let tries = climber.tries(&width.passes);
        let place = measured.facts.widths.len();
        measured.facts.widths.push(width);
        while let Some((pass, trial)) = Trial::next(measured, place, tries) {
            trial.run(&mut climber, &mut measured.facts.widths[place].passes[pass])?;
        }
        let width = &mut measured.facts.widths[place];
        // The closure is for the type in which the fused model computes.
        let is_alike = measured.facts.config.compute_dtype.is_none();
        if is_alike && width.room_for_stock(self.batch, measured.budget) {
            width.stock = climber.stock(self.batch)?;
        }
        width.left = memory::live(device)?;
        Ok(())
    }
}
