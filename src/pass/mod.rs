//! One forward and backward pass: what every slot of a model shares while it lasts.

mod scope;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::backend::DispatchTensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, GradientCheckpointingStrategy};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::error::FusedError;
use crate::policy::{Plan, Update};
use crate::tap::{Census, Clock};

pub(crate) use scope::{Entered, Reader, Readers, Scope};

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

/// The pass all slots of a model share.
pub(crate) struct Pass {
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    plan: Plan,
    /// Ends the pass: no further gradient is used.
    error: Option<FusedError>,
    /// Set when a loss has been scaled, if the closure must see to that.
    scaled: Option<Arc<AtomicBool>>,
    /// The number of parameters read in `graph`, the last that one was read in.
    reads: usize,
    graph: usize,
    clocks: Vec<Clock>,
    census: Option<Arc<Census>>,
    update: Update,
}

impl Pass {
    pub(crate) fn new(optimizer: ModuleOptimizer) -> Self {
        Self {
            state: Mutex::new(State {
                phase: Phase::Idle,
                plan: Plan::default(),
                error: None,
                scaled: None,
                reads: 0,
                graph: 0,
                clocks: Vec::new(),
                census: None,
                update: Update::new(optimizer),
            }),
        }
    }

    /// Starts a pass; it ends when the returned guard is dropped, by a panic too.
    pub(crate) fn begin(&self, phase: Phase, plan: Plan) -> Running<'_> {
        let mut state = self.state.lock();
        state.phase = phase;
        state.plan = plan;
        state.error = None;
        state.scaled = None;
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

    pub(crate) fn plan(&self) -> Plan {
        self.state.lock().plan.clone()
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.state.lock().phase = phase;
    }

    /// Lets no gradient in before `scaled` is set.
    pub(crate) fn expect_scaled(&self, scaled: Arc<AtomicBool>) {
        self.state.lock().scaled = Some(scaled);
    }

    /// Whether a gradient may still be used.
    pub(crate) fn admits(&self) -> bool {
        let state = &mut *self.state.lock();
        if let Some(scaled) = &state.scaled
            && !scaled.load(Ordering::Relaxed)
        {
            state.error.get_or_insert(FusedError::LossNotScaled);
        }
        state.error.is_none()
    }

    /// Ends the pass with an error, if it has none yet.
    pub(crate) fn fail(&self, error: FusedError) {
        self.state.lock().error.get_or_insert(error);
    }

    pub(crate) fn take_error(&self) -> Option<FusedError> {
        self.state.lock().error.take()
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
        let graph = Scope::graph();
        if graph != state.graph {
            (state.graph, state.reads) = (graph, 0);
        }
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
        let mut state = self.pass.state.lock();
        state.phase = Phase::Idle;
        state.plan = Plan::default();
    }
}
