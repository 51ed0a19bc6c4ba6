use backburn_base::caught::catch;
use backburn_base::is_remote;
use backburn_memory::MemoryError;
use backburn_optim::SgdConfig;
use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use parking_lot::Mutex;

use crate::config::FusedConfig;
use crate::device::{check_device, warm_threads};
use crate::files::cast;
use crate::footprint::parameters;
use crate::fused::{FusedOptimizer, Loss, Trainer};

use super::budget::Budget;
use super::error::PlanError;
use super::optimizer::PlannedOptimizer;
use super::outline::Outline;
use super::plan::Plan;
use super::probe::{Probe, held};
use super::profile::Profile;
use super::search::Search;
use super::set::TechniqueSet;
use super::set_profile::Limits;
use super::storage::{FIRST_PASS_BYTES, WeightStorage};
use super::technique::Technique;

/// Factor on the measured bytes of a pass, because the work of threads in parallel varies from run to run.
const MARGIN: f64 = 1.01;

/// Factor on a device with its own memory, which is measured only between kernels.
const DEVICE_MARGIN: f64 = 1.25;

/// A process-wide lock, because concurrent planners would measure each other's memory.
static MEASURING: Mutex<()> = Mutex::new(());

/// A planner that finds the smallest change with which a training fits a memory budget.
///
/// It takes a function that creates the model, because the model itself may not fit. [`plan`](Self::plan) runs forward and backward passes
/// over parts of the batch, within the budget if a plan fits it.
///
/// ```
/// use backburn::memory::RecordingAllocator;
/// use backburn::optim::AdamWConfig;
/// use backburn::{Planner, gradient_checkpointing};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
///
/// #[global_allocator] // Leave this out on a device with its own memory.
/// static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();
///
/// let device = Device::flex().autodiff();
/// let init = || (0..6).map(|_| LinearConfig::new(64, 64).init(&device)).collect::<Vec<Linear>>();
/// let loss = |model: &Vec<Linear>, items| {
///     let x = Tensor::<2>::ones([items, 64], &device); // your batch, with this number of items
///     let block = |linear: &Linear, x| linear.forward(x).tanh();
///     model.iter().fold(x, |x, linear| gradient_checkpointing(linear, x, block)).mean()
/// };
///
/// let planner = Planner::new(init, AdamWConfig::new()).with_batch(512);
/// let plan = planner.plan(loss, 16_000_000)?;
/// println!("{plan}");
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
    device: Option<Device>,
    progress: fn(&str),
}

impl<M, I, O> Planner<I, O>
where
    M: Module,
    I: Fn() -> M,
    O: PlannedOptimizer,
{
    /// Creates a planner for the model that `init` returns, on an autodiff device, and for `optimizer`: a config of
    /// [`backburn::optim`](crate::optim), or any [`ModuleOptimizer`](burn::optim::ModuleOptimizer), whose formats are not changed.
    pub fn new(init: I, optimizer: O) -> Self {
        Self {
            init,
            optimizer,
            batch: 1,
            order: Technique::LEAST_COST.to_vec(),
            config: FusedConfig::new(),
            device: None,
            progress: |_| {},
        }
    }

    /// Sets the number of items in a step; by default 1. Micro-batches have equal sizes.
    #[must_use]
    pub fn with_batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// Sets the allowed techniques, in the order in which they are tried; by default [`Technique::LEAST_COST`].
    #[must_use]
    pub fn with_order(mut self, order: &[Technique]) -> Self {
        self.order = order.to_vec();
        self
    }

    /// Sets the other options of the training, such as clipping and loss scaling. The plan overrides recomputed blocks and offload.
    #[must_use]
    pub fn with_config(mut self, config: FusedConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the compute device, if the model is created on another device. States and updates of a device with its own
    /// memory can be offloaded to the host.
    #[must_use]
    pub fn with_device(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Sets a function that is called with a description of each pass before it runs, and of each budget that is tried.
    #[must_use]
    pub fn with_progress(mut self, progress: fn(&str)) -> Self {
        self.progress = progress;
        self
    }

    /// Returns the first plan that fits `budget`, in the [order](Self::with_order) of the techniques. `loss` computes the loss of a number
    /// of items.
    ///
    /// The memory of larger passes is extrapolated from dry runs over one item, two, and more. A candidate that is expected to fit, with a
    /// margin of 1 % of a pass and 0.13 MB (25 % on a device with its own memory), is proved by a dry run of exactly that candidate. A pass
    /// that exceeds the budget, or is expected to, is stopped at the next read of a parameter or at the start of its backward pass. Weights
    /// in bf16 and on the host are tried only if nothing else fits. The dry runs draw random numbers: seed the device afterwards. The
    /// measurement covers the whole process, or the device: don't train anything else at the same time.
    ///
    /// If nothing fits, larger budgets are tried until one is enough, up to [the memory of the machine](Budget::Machine). On a device with
    /// its own memory none is tried.
    ///
    /// # Errors
    ///
    /// - If nothing fits: the error contains the missing bytes and options that would help.
    /// - If the budget or the batch is zero, or the budget is unknown.
    /// - If the model can't be fused, its device does not exist, or the loss does not depend on it.
    /// - If the model is on several devices and [`with_device`](Self::with_device) is not set, or the device is remote.
    /// - If the program does not run on the [`RecordingAllocator`](crate::memory::RecordingAllocator) and the device does not report the usage
    ///   of its pools.
    /// - If another recording or planner is active.
    ///
    /// # Panics
    ///
    /// If `loss` panics. With weights in bf16 or on the host, a panic about the float type or the offload is the reason why they are
    /// not possible.
    pub fn plan<L: Loss>(
        &self,
        loss: impl Fn(&M, usize) -> L,
        budget: impl Into<Budget>,
    ) -> Result<Plan<O>, PlanError> {
        if self.batch == 0 {
            return Err(PlanError::invalid(
                "the batch has 0 items: set their number with `with_batch`",
            ));
        }
        let alone = MEASURING.try_lock();
        let _alone = alone.ok_or(MemoryError::AlreadyRecording)?;
        let initial = (self.init)();
        let devices = initial.devices().len();
        if self.device.is_none() && devices > 1 {
            return Err(PlanError::invalid(format!(
                "the model is on {devices} devices, and a plan covers one: create it on one device, or pass the device that trains \
                 with `with_device`, and train with `Plan::fuse_on`"
            )));
        }
        let device = self.device.clone();
        let device = device.or_else(|| initial.devices().into_iter().next());
        let device = device.unwrap_or_default();
        check_device(&device, FloatDType::F32)?;
        if is_remote(&device) {
            return Err(PlanError::invalid(
                "the memory of a remote device can't be measured: plan on the machine of its server",
            ));
        }
        let device = device.inner();
        let budget = budget.into();
        let model = Outline::of(initial, &device)?;
        let bytes = budget.bytes(&device)?;
        warm_threads(&device);
        match self.plan_within(bytes, &model, &device, &loss) {
            Err(refused @ PlanError::NothingFits { .. }) => {
                let most = budget.most(&device);
                Err(self.with_larger_budget(refused, most, &model, &device, &loss))
            }
            planned => planned,
        }
    }

    /// Returns the error `refused` with a budget of at most `most` bytes that is enough, if there is one.
    fn with_larger_budget<L: Loss>(
        &self,
        refused: PlanError,
        most: usize,
        model: &Outline,
        device: &Device,
        loss: &impl Fn(&M, usize) -> L,
    ) -> PlanError {
        let mut last = refused;
        let mut failed = 0;
        let mut first = None;
        loop {
            let PlanError::NothingFits {
                budget,
                least,
                advice,
                ..
            } = last
            else {
                return last;
            };
            let given = *first.get_or_insert(budget);
            failed = failed.max(budget);
            let tried = least.max(failed.saturating_add(failed / 4)).min(most);
            let error = |least, is_enough| PlanError::NothingFits {
                budget: given,
                least,
                is_enough,
                advice,
            };
            if tried <= failed {
                return error(least, false);
            }
            last = match self.try_budget(tried, model, device, loss) {
                Ok(()) => {
                    let middle = failed.midpoint(tried);
                    let fits = self.try_budget(middle, model, device, loss).is_ok();
                    let enough = if fits { middle } else { tried };
                    // The buffers of threads differ from run to run.
                    return error(enough + enough / 50, true);
                }
                Err(refused) => refused,
            };
        }
    }

    /// Returns an error unless a plan fits `budget`.
    fn try_budget<L: Loss>(
        &self,
        budget: usize,
        model: &Outline,
        device: &Device,
        loss: &impl Fn(&M, usize) -> L,
    ) -> Result<(), PlanError> {
        (self.progress)(&format!(
            "a budget of {budget} bytes, because no plan fits less"
        ));
        self.plan_within(budget, model, device, loss).map(drop)
    }

    /// Returns the first plan that fits `budget`.
    fn plan_within<L: Loss>(
        &self,
        budget: usize,
        model: &Outline,
        device: &Device,
        loss: &impl Fn(&M, usize) -> L,
    ) -> Result<Plan<O>, PlanError> {
        let before = held(device)?;
        let has_own_memory = device.memory_pool_usage().is_some();
        let mut search = Search {
            limits: Limits {
                batch: self.batch,
                budget,
                margin: if has_own_memory {
                    DEVICE_MARGIN
                } else {
                    MARGIN
                },
            },
            config: self.config.clone().with_offload(None),
            sets: TechniqueSet::all(&self.order, &self.optimizer, has_own_memory),
            profiles: Vec::new(),
            too_large: Vec::new(),
            refused: Vec::new(),
        };
        for storage in search.storages() {
            // Offloaded weights are created on the host.
            let are_elsewhere = storage.on_host && self.device.is_some();
            let least = before
                + match are_elsewhere {
                    true => FIRST_PASS_BYTES,
                    false => storage.least(model),
                };
            if least > budget {
                search.too_large.push((storage, least));
                continue;
            }
            if storage == WeightStorage::default() {
                self.search_with(storage, &mut search, device, loss)?;
            } else {
                let tried = catch(|| self.search_with(storage, &mut search, device, loss));
                let refused = match tried {
                    Ok(Ok(())) => None,
                    Ok(Err(PlanError::Fused(error))) => Some(error.to_string()),
                    Ok(Err(error)) => return Err(error),
                    Err(panic) => match panic.text().filter(|text| storage.is_named_in(text)) {
                        Some(text) => Some(text.to_string()),
                        None => panic.resume(),
                    },
                };
                if let Some(reason) = refused {
                    search.profiles.retain(|profile| profile.storage != storage);
                    search.refused.push((storage, reason));
                }
            }
            if let Some(choice) = search.best() {
                return Ok(Plan::of(
                    &search,
                    &choice,
                    &self.optimizer,
                    model.key,
                    model.has_statistics,
                ));
            }
        }
        Err(search.nothing_fits())
    }

    /// Measures the model with this storage of its weights, until a choice is proved or none fits.
    fn search_with<L: Loss>(
        &self,
        storage: WeightStorage,
        search: &mut Search,
        device: &Device,
        loss: &impl Fn(&M, usize) -> L,
    ) -> Result<(), PlanError> {
        let weights = if storage.in_bf16 { " in bf16" } else { "" };
        (self.progress)(&format!("making the model{weights}"));
        let mut model = (self.init)();
        if let Some(dtype) = storage.dtype() {
            model = cast(model, dtype)?;
        }
        // Bytes of states and averages are computed, so the passes run without them.
        let fused = FusedOptimizer::new(model, SgdConfig::new().init())?;
        let config = search.config.clone().with_averaging(None);
        let config = config.with_offload(storage.offload());
        let mut fused = match &self.device {
            Some(device) => fused.with_config_on(config, device)?,
            None => fused.with_config(config)?,
        };
        let parameters = parameters(&fused.model());
        let mut profile = Profile::new(storage, parameters, fused.core_mut().shared_bytes());
        for formats in search.formats(storage) {
            profile.measure_states(&self.optimizer, formats)?;
        }
        let index = search.profiles.len();
        search.profiles.push(profile);
        let mut probe = Probe {
            fused: &mut fused,
            loss,
            device,
            budget: search.limits.budget,
            available: search
                .limits
                .budget
                .saturating_sub(search.least_resident(storage)),
            margin: search.limits.margin,
            spread: 0.0,
            progress: self.progress,
        };
        search.profiles[index].measure_first(&mut probe, self.batch)?;
        while let Some(choice) = search.best() {
            let (items, kept) = (choice.items, choice.kept);
            let profile = &mut search.profiles[index];
            match kept {
                None => profile.measure(&mut probe, profile.next(items))?,
                Some(kept) if !kept.is_proved => profile.prove(&mut probe, items, &kept)?,
                Some(_) => break,
            }
        }
        Ok(())
    }
}
