//! The events of a step, for the memory recorder and for observers of the user.

use std::collections::HashMap;
use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use backburn_memory as memory;
use backburn_memory::{BlockRun, Category, Phase};
use burn::tensor::Tensor;
use parking_lot::Mutex;

use crate::threads::lock;

/// An event of a step, in the order of time on each device.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum StepEvent<'a> {
    /// A pass begins, also one without a forward pass, which applies accumulated gradients. A step has one pass, two
    /// with exact clipping or `SkipStep`, three with `ExactInBuffer`.
    Forward,
    /// A parameter is read that is updated during the backward pass. Reads of all others emit no event.
    Read {
        /// Path in the module, its names joined by dots.
        path: &'a str,
    },
    /// The first run of a checkpointed block begins.
    BlockForward {
        /// Index of the block in the pass, in the order of the calls; `None` for a nested block, or one that keeps its
        /// activations.
        index: Option<usize>,
    },
    /// The recomputation of a block begins.
    BlockRecompute {
        /// Index of the block.
        index: Option<usize>,
        /// Type and path of the block.
        name: &'a str,
        /// Bytes of the outputs.
        outputs: usize,
    },
    /// The backward pass of a block begins, after its recomputation.
    BlockRecomputed {
        /// Index of the block.
        index: Option<usize>,
    },
    /// The gradient of an output enters a block.
    BlockBackward {
        /// Index of the block.
        index: Option<usize>,
    },
    /// The backward pass begins. A closure that runs it itself emits no such event.
    Backward,
    /// The gradient of a parameter is complete on a device.
    GradientReady {
        /// Path of the parameter.
        path: &'a str,
        /// Bytes of the gradient.
        bytes: usize,
    },
    /// The optimizer begins to step a parameter, or to add its gradient to the optimizer state.
    Updating {
        /// Path of the parameter.
        path: &'a str,
    },
    /// The optimizer has stepped a parameter or added its gradient to the optimizer state, or has failed to.
    Updated {
        /// Path of the parameter.
        path: &'a str,
        /// `true` if the value had another owner and was copied; `None` if the backend does not detect that.
        copied: Option<bool>,
    },
    /// The pass is over.
    End,
    /// A tensor has this use from now on.
    #[doc(hidden)]
    Tensor(Category, &'a Tensor<1>),
}

/// An observer of the events of a step, on the threads on which they happen.
///
/// ```
/// use backburn::{FusedOptimizer, StepEvent, StepObserver};
/// # use burn::{nn::LinearConfig, optim::SgdConfig, tensor::{Device, Tensor}};
///
/// struct Log;
///
/// impl StepObserver for Log {
///     fn observe(&self, event: StepEvent<'_>) {
///         if let StepEvent::Updated { path, .. } = event {
///             println!("{path} is updated");
///         }
///     }
/// }
///
/// # let device = Device::flex().autodiff();
/// # let model = LinearConfig::new(2, 1).init(&device);
/// # let x = Tensor::<2>::ones([3, 2], &device);
/// let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())?.with_observer(Log);
/// fused.step(0.1, |model| model.forward(x).mean())?;
/// # Ok::<(), backburn::FusedError>(())
/// ```
pub trait StepObserver: Send + Sync + 'static {
    /// Receives an event. A panic fails the step. A panic at [`StepEvent::End`] is passed on after the step, which is then
    /// complete. The model must not be read here.
    fn observe(&self, event: StepEvent<'_>);
}

/// The observers of a training, or of one pass of a rank.
#[derive(Clone, Default)]
pub(crate) struct Observers(pub(crate) Vec<Arc<dyn StepObserver>>);

impl Observers {
    pub(crate) fn emit(&self, event: StepEvent<'_>) {
        lock::check_none_held("an observer is called");
        self.0.iter().for_each(|observer| observer.observe(event));
    }
}

impl Debug for Observers {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "Observers({})", self.0.len())
    }
}

/// The observer of one pass of a rank that reports to the memory recorder.
#[derive(Default)]
pub(crate) struct MemoryObserver {
    blocks: Mutex<HashMap<usize, BlockRun>>,
}

impl StepObserver for MemoryObserver {
    fn observe(&self, event: StepEvent<'_>) {
        match event {
            StepEvent::Forward => memory::enter(Phase::Forward),
            StepEvent::Read { .. } => memory::end_beyond_limit(),
            StepEvent::BlockForward { index } => {
                memory::end_beyond_limit();
                let run = index.and_then(memory::enter_block);
                self.blocks.lock().extend(index.zip(run));
            }
            StepEvent::BlockRecompute {
                index,
                name,
                outputs,
            } => {
                memory::end_beyond_limit();
                let run = self.run(index).into_iter();
                run.for_each(|run| memory::enter_recomputation(run, name, outputs));
            }
            StepEvent::BlockRecomputed { index } | StepEvent::BlockBackward { index } => {
                self.run(index).into_iter().for_each(memory::note_block);
            }
            StepEvent::Backward => {
                memory::enter(Phase::Backward);
                memory::end_beyond_limit();
            }
            StepEvent::Tensor(category, tensor) => {
                if category == Category::Gradient {
                    memory::end_beyond_limit();
                }
                memory::report_use(category, tensor);
            }
            StepEvent::GradientReady { bytes, .. } => memory::note_gradient(bytes),
            StepEvent::Updating { path } => memory::enter_update(path),
            StepEvent::Updated { .. } => memory::enter(Phase::Backward),
            StepEvent::End => memory::enter(Phase::Other),
        }
    }
}

impl MemoryObserver {
    /// Returns the id of a block whose first run is recorded.
    fn run(&self, index: Option<usize>) -> Option<BlockRun> {
        self.blocks.lock().get(&index?).copied()
    }
}
