use burn::module::Module;
use burn::tensor::{Device, FloatDType};

use crate::cast::try_cast;
use crate::caught::catch;
use crate::config::FusedConfig;
use crate::device::check_device;
use crate::estimate::{self, parameters};
use crate::fused::FusedOptimizer;
use crate::loss::Loss;
use crate::memory;
use crate::parameters::{ModelKey, list};

use super::budget::Budget;
use super::climb::{AT_FIRST, Climber};
use super::error::PlanError;
use super::measured::Measured;
use super::optimizer::PlannedOptimizer;
use super::technique::Technique;
use super::width::Width;

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
    device: Option<Device>,
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
            device: None,
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

    /// Where the model computes, if it is not where it is made: a device with memory of its own, from which states and updates
    /// can wait on the host.
    #[must_use]
    pub fn with_device(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Measures what passes of the model hold, over parts of the batch from one item on, as long as they stay within `budget`.
    /// `loss` computes the loss of so many items.
    ///
    /// Every part is run with blocks that keep their activations, and with blocks that run twice; what fits the budget is
    /// run once more as it was chosen. Weights in bf16 are tried if nothing fits in the type of the model. Nothing is trained, but random numbers
    /// are drawn: seed the device afterwards. The memory that is measured is that of the whole process, or of the device: train nothing
    /// beside it.
    ///
    /// # Errors
    ///
    /// If the budget or the batch is zero, or the budget is not known; if the model can't be fused, is on a device that is not there,
    /// or the loss does not depend on it; if the program does not run on the
    /// [`RecordingAllocator`](crate::memory::RecordingAllocator) and the device does not tell what its pools hold, or something
    /// else records.
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
        let model = (self.init)();
        let device = match &self.device {
            Some(device) => device.clone(),
            None => model.devices().into_iter().next().unwrap_or_default(),
        };
        let device = device.inner();
        check_device(&device, FloatDType::F32)?;
        let budget = budget.into().bytes(&device)?;
        let before = memory::live(&device)?;
        let own = device.memory_pool_usage().is_some();
        let mut measured = Measured::new(
            ModelKey::of(&model),
            self.batch,
            budget,
            self.order.clone(),
            self.optimizer.clone(),
            self.config.clone().with_offload(None),
            own,
        );
        let lazy = list(&model).into_iter().map(|it| it.param);
        // What is in memory is counted already.
        let lazy = lazy.filter(|param| !param.is_initialized());
        let elements: Vec<usize> = lazy.map(|param| param.shape().num_elements()).collect();
        let (all, largest) = (elements.iter().sum::<usize>(), elements.iter().max());
        // One is drawn, and cast, beside the others; then a pass begins.
        let beside = before + 8 * largest.unwrap_or(&0) + AT_FIRST;
        let (whole, half) = (beside + 4 * all, beside + 2 * all);
        drop(model);
        measured.least_of_weights = half;
        if whole <= budget {
            self.width(&mut measured, None, &device, &loss)?;
        }
        if measured.fits() || !measured.allows_bf16() || half > budget {
            return Ok(measured);
        }
        match catch(|| self.width(&mut measured, Some(FloatDType::BF16), &device, &loss)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => measured.refuse_bf16(&error.to_string()),
            Err(panic) => measured.refuse_bf16(panic.text().unwrap_or("it panics")),
        }
        Ok(measured)
    }

    /// Measures the model with weights of this type.
    fn width<L: Loss>(
        &self,
        measured: &mut Measured<O>,
        dtype: Option<FloatDType>,
        device: &Device,
        loss: &impl Fn(&M, usize) -> L,
    ) -> Result<(), PlanError> {
        let model = (self.init)();
        let model = match dtype {
            Some(dtype) => try_cast(model, dtype)?,
            None => model,
        };
        let mut fused = FusedOptimizer::try_new(model, self.optimizer.build())?;
        let config = measured.config.clone();
        match &self.device {
            Some(device) => fused.try_set_config_on(config, device)?,
            None => fused.try_set_config(config)?,
        }
        let parameters = parameters(&fused.model());
        let mut width = Width::new(dtype, parameters);
        for (states, weights) in measured.formats(dtype) {
            if let Some(optimizer) = self.optimizer.formatted(states, weights) {
                let optimizer = optimizer.build();
                let held = estimate::measure(&optimizer, &width.parameters, O::SHAPE_TELLS);
                width.states.push(((states, weights), held));
            }
        }
        let room = measured.budget.saturating_sub(width.least_states());
        let mut climber = Climber {
            fused: &mut fused,
            loss,
            device,
            largest: width.largest(),
            spread: None,
        };
        width.passes = climber.climb(&sizes(self.batch), room)?;
        measured.have_spread(climber.spread.unwrap_or(0.0));
        let place = measured.widths.len();
        measured.widths.push(width);
        // What was chosen is tried, until that tells nothing new.
        while let Some((place_of_pass, kept)) = measured.untried(place) {
            let pass = &mut measured.widths[place].passes[place_of_pass];
            climber.check(pass, &kept)?;
        }
        measured.measure_stock(place, |items| climber.stock(items))?;
        measured.widths[place].left = memory::live(device)?;
        Ok(())
    }
}

/// Parts of a batch, the smallest first: each at most half of the next, and dividing it.
fn sizes(batch: usize) -> Vec<usize> {
    let mut sizes = vec![batch];
    let mut last = batch;
    while last > 1 {
        last = (1..=last / 2)
            .rev()
            .find(|part| last.is_multiple_of(*part))
            .unwrap_or(1);
        sizes.push(last);
    }
    sizes.reverse();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_batch_divide_it() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(7), [1, 7]);
        assert_eq!(sizes(32), [1, 2, 4, 8, 16, 32]);
        assert_eq!(sizes(60), [1, 5, 15, 30, 60]);
    }
}
