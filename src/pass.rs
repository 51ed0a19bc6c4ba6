//! One forward and backward pass: what every slot of a model shares while it lasts.

use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, GradientCheckpointingStrategy};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::policy::Update;
use crate::tap::{Census, Clock};

/// Where a pass stands, and so what a slot may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No pass: the fused form must not be read.
    Idle,
    /// The forward closure runs; a backward pass inside of it is a mistake.
    Forward,
    /// Gradients may arrive.
    Backward,
}

/// What a finished gradient is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Add it to the parameter's accumulated gradient.
    Accumulate,
    /// Measure it, and drop it.
    Measure,
    /// Step the parameter.
    Update,
}

/// The pass all slots of a model share.
pub(crate) struct Pass {
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    goal: Goal,
    reads: usize,
    clocks: Vec<Clock>,
    census: Option<Arc<Census>>,
    /// What gradients are multiplied by before the update.
    coefficient: Option<f64>,
    /// Whether to measure gradients in an update too.
    measures: bool,
    update: Update,
}

impl Pass {
    pub(crate) fn new(optimizer: ModuleOptimizer) -> Self {
        Self {
            state: Mutex::new(State {
                phase: Phase::Idle,
                goal: Goal::Update,
                reads: 0,
                clocks: Vec::new(),
                census: None,
                coefficient: None,
                measures: false,
                update: Update::new(optimizer),
            }),
        }
    }

    /// Starts a pass; it ends when the returned guard is dropped, by a panic too.
    pub(crate) fn begin(&self, phase: Phase, goal: Goal) -> Running<'_> {
        let mut state = self.state.lock();
        state.phase = phase;
        state.goal = goal;
        state.reads = 0;
        if let Some(census) = &state.census {
            // A pass that failed may have left taps behind, and with them owners of values.
            census.take();
        }
        Running { pass: self }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    pub(crate) fn goal(&self) -> Goal {
        self.state.lock().goal
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.state.lock().phase = phase;
    }

    /// Sets what gradients are multiplied by before the update.
    pub(crate) fn set_coefficient(&self, coefficient: Option<f64>) {
        self.state.lock().coefficient = coefficient;
    }

    pub(crate) fn coefficient(&self) -> Option<f64> {
        self.state.lock().coefficient
    }

    /// Sets whether gradients are measured when they are used.
    pub(crate) fn set_measures(&self, measures: bool) {
        self.state.lock().measures = measures;
    }

    /// Whether gradients are measured in this pass.
    pub(crate) fn measures(&self) -> bool {
        let state = self.state.lock();
        match state.goal {
            Goal::Accumulate => false,
            Goal::Measure => true,
            Goal::Update => state.measures,
        }
    }

    pub(crate) fn set_learning_rate(&self, learning_rate: ModuleLearningRate) {
        self.state.lock().update.learning_rate = learning_rate;
    }

    /// The clock tick of the next parameter read.
    pub(crate) fn next_tick(
        &self,
        device: &Device,
        strategy: GradientCheckpointingStrategy,
    ) -> DispatchTensor {
        let mut state = self.state.lock();
        let read = state.reads;
        state.reads += 1;
        state.clock(device, strategy).tick(read)
    }

    /// The clock tick of the given index.
    pub(crate) fn tick(
        &self,
        index: usize,
        device: &Device,
        strategy: GradientCheckpointingStrategy,
    ) -> DispatchTensor {
        self.state.lock().clock(device, strategy).tick(index)
    }

    /// The optimizer and learning rate, locked.
    pub(crate) fn update(&self) -> MappedMutexGuard<'_, Update> {
        MutexGuard::map(self.state.lock(), |state| &mut state.update)
    }

    pub(crate) fn set_census(&self, census: Option<Arc<Census>>) {
        self.state.lock().census = census;
    }

    pub(crate) fn census(&self) -> Option<Arc<Census>> {
        self.state.lock().census.clone()
    }
}

impl State {
    fn clock(&mut self, device: &Device, strategy: GradientCheckpointingStrategy) -> &mut Clock {
        let found = self.clocks.iter().position(|c| c.fits(device, strategy));
        let index = found.unwrap_or_else(|| {
            self.clocks.push(Clock::new(device, strategy));
            self.clocks.len() - 1
        });
        &mut self.clocks[index]
    }
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pass").finish_non_exhaustive()
    }
}

/// A pass under way.
pub(crate) struct Running<'a> {
    pass: &'a Pass,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.pass.set_phase(Phase::Idle);
    }
}
