use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use parking_lot::Mutex;

use crate::cast::cast;
use crate::caught::catch;
use crate::config::FusedConfig;
use crate::device::{check_device, warm_threads};
use crate::estimate::{self, parameters};
use crate::fused::FusedOptimizer;
use crate::loss::Loss;
use crate::memory::{self, MemoryError};
use crate::optim::SgdConfig;
use crate::parameters::{ModelKey, list};
use crate::tap::sweep;

use super::budget::Budget;
use super::error::PlanError;
use super::expected::Outlook;
use super::facts::{APART, AT_ONCE, Facts};
use super::level::Level;
use super::measured::Measured;
use super::optimizer::PlannedOptimizer;
use super::probe::Probe;
use super::technique::Technique;
use super::trial::Trial;
use super::variant::{AT_FIRST, Footing, Variant};

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
/// let mut fused = plan.fuse(init)?;
/// for _ in 1..plan.accumulation {
///     fused.accumulate(|model| loss(model, plan.batch) / plan.accumulation as f32)?;
/// }
/// fused.step(1e-3, |model| loss(model, plan.batch) / plan.accumulation as f32)?;
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
        let apart = device.memory_pool_usage().is_some();
        let mut facts = Facts {
            batch: self.batch,
            budget,
            config: self.config.clone().with_offload(None),
            levels: Level::all(&self.order, &self.optimizer, apart, self.devices.len()),
            apart,
            margin: if apart { APART } else { AT_ONCE },
            variants: Vec::new(),
            too_large: Vec::new(),
            refused_bf16: None,
        };
        let key = ModelKey::of(&model);
        let sizes: Vec<_> = list(&model)
            .into_iter()
            .map(|it| (it.param.shape().num_elements(), it.param.is_initialized()))
            .collect();
        drop(model);
        for footing in facts.footings() {
            if facts.best(budget, Outlook::Seen).is_some() {
                break;
            }
            // Weights on the host are made there, and stay.
            let are_elsewhere = footing.on_host && !self.devices.is_empty();
            let weights = if are_elsewhere {
                0
            } else {
                footing.making(&sizes)
            };
            let least = before + weights + AT_FIRST;
            if least > budget {
                facts.too_large.push((footing, least));
                continue;
            }
            if !footing.in_bf16 {
                self.measure_on(footing, &mut facts, &device, &loss)?;
                continue;
            }
            let refused = match catch(|| self.measure_on(footing, &mut facts, &device, &loss)) {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(panic) => panic.text().unwrap_or("it panics").to_string(),
            };
            // What was measured until then is not to be trusted.
            facts.variants.retain(|variant| !variant.footing.in_bf16);
            facts.refused_bf16 = Some(refused);
        }
        Ok(Measured {
            model: key,
            optimizer: self.optimizer.clone(),
            device,
            facts,
        })
    }

    /// Measures the model with weights on this footing.
    fn measure_on<L: Loss>(
        &self,
        footing: Footing,
        facts: &mut Facts,
        device: &Device,
        loss: &impl Fn(&M, usize) -> L,
    ) -> Result<(), PlanError> {
        let before = held(device)?;
        (self.progress)(&format!("making the model, weights {footing}"));
        let mut model = (self.init)();
        if let Some(dtype) = footing.dtype() {
            model = cast(model, dtype)?;
        }
        // What the optimizer holds is reckoned.
        let stateless = SgdConfig::new().init();
        let fused = FusedOptimizer::new(model, stateless.clone())?;
        // Averages are computed, too: the passes do not hold them.
        let config = facts.config.clone().with_averaging(None);
        let config = config.with_offload(footing.offload());
        let mut fused = match self.devices.first() {
            Some(device) => fused.with_config_on(config, device)?,
            None => fused.with_config(config)?,
        };
        let parameters = parameters(&fused.model());
        let held = memory::live(device)?.saturating_sub(before);
        let mut variant = Variant::new(footing, parameters, held);
        variant.notes = estimate::measure(&stateless, &variant.parameters, true)?.sum();
        variant.measure_states(&self.optimizer, &facts.formats(footing))?;

        let (place, largest) = (facts.variants.len(), variant.largest());
        facts.variants.push(variant);

        let mut probe = Probe {
            fused: &mut fused,
            loss,
            device,
            budget: facts.budget,
            room: facts.budget.saturating_sub(facts.least_beside(footing)),
            largest,
            unseen: if facts.apart { APART } else { 1.0 },
            spread: 0.0,
            ended_at: None,
            progress: self.progress,
        };
        facts.variants[place].passes = probe.climb(self.batch)?;
        facts.variants[place].ended_at = probe.ended_at;
        while let Some(trial) = Trial::next(facts, &facts.variants[place]) {
            trial.run(&mut probe, &mut facts.variants[place].passes)?;
        }
        let variant = &mut facts.variants[place];
        // The closure is for the type in which the fused model computes.
        let is_alike = facts.config.compute_dtype.is_none();
        if is_alike && variant.room_for_stock(self.batch, facts.budget) {
            variant.stock = probe.stock(self.batch)?;
        }
        variant.left = memory::live(device)?;
        Ok(())
    }
}

/// Bytes in use, without those of models that are gone: autodiff keeps its notes of them until a way back.
fn held(device: &Device) -> Result<usize, MemoryError> {
    sweep(device);
    memory::live(device)
}
