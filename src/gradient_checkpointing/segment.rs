use std::any::type_name;
use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{GradientCheckpointingStrategy, Tensor};
use parking_lot::Mutex;

use super::activations::Activations;
use super::blocks;
use super::host::KeptInput;
use super::keep::Leaves;
use super::name::located;
use super::pack::{Pack, joined};
use crate::memory::{self, BlockRun};
use crate::pass::{Readers, Scope};
use crate::random::Stream;
use crate::slot::{Statistics, with_own_leaves};
use crate::tap::{GradientSink, tap};

/// A block that has run without recording, with what its second run needs.
pub(super) struct Segment<B, X, F> {
    /// Its leaves are constants.
    pub(super) block: B,
    /// The parameters that have no slot.
    pub(super) leaves: Vec<ParamId>,
    pub(super) name: String,
    pub(super) input: KeptInput<X>,
    /// Which of the inputs need a gradient.
    pub(super) tracked: Vec<bool>,
    pub(super) forward: F,
    pub(super) strategy: GradientCheckpointingStrategy,
    pub(super) random: Stream,
    /// The parameters that wait for the second run.
    pub(super) readers: Arc<Mutex<Readers>>,
    /// For the memory recorder.
    pub(super) run: Option<BlockRun>,
}

impl<B, X, Y, F> Segment<B, X, F>
where
    B: Module + 'static,
    X: Activations,
    Y: Activations,
    F: Fn(&B, X) -> Y + Send + 'static,
{
    /// Waits for the gradient of the packed output, and passes that of the packed input on.
    pub(super) fn into_sink(self) -> Arc<dyn GradientSink> {
        Arc::new(Waiting(Mutex::new(Some(self))))
    }

    /// Runs the block again, recorded, and back with the `gradient` of its packed output. Returns the
    /// gradient of its packed input, if there is one.
    fn run(self, gradient: Tensor<1>) -> Option<Tensor<1>> {
        let device = gradient.device();
        let name = &self.name;
        if let Some(run) = self.run {
            memory::enter_second_run(run, name);
        }
        let block = with_own_leaves(self.block, &self.leaves);
        let statistics = Statistics::of(&block);
        let mut inputs = Leaves {
            strategy: self.strategy,
            tracked: self.tracked.iter(),
            gradients: Vec::new(),
        };
        let output = {
            let _scope = Scope::enter_second_run(self.random.seed);
            let input = self.input.take().map_floats(&mut inputs);
            let mut output = Pack::default();
            let place = || {
                format!(
                    "the second run of the recomputed block {name}, whose parameters and those \
                     before it are unchanged,"
                )
            };
            let again = || (self.forward)(&block, input);
            located(|| self.random.during(2, again), place).map_floats(&mut output);
            output.pack(name)
        };
        let block = statistics.put_back(block);
        for reader in self.readers.lock().take() {
            reader.redeem();
        }
        let output = output.filter(|output| output.dims() == gradient.dims());
        let output = output.unwrap_or_else(|| {
            panic!(
                "the second run of the recomputed block {name} returned other tensors than the \
                 first: it must compute the same from its inputs"
            )
        });
        if let Some(run) = self.run {
            memory::leave_second_run(run);
        }
        // Something to go back from, with the output beside it.
        let root = Tensor::<1>::zeros([1], &device);
        let given = Given(Mutex::new(Some(gradient.into_dispatch())));
        let root = tap(
            root,
            self.strategy,
            output.into_dispatch(),
            Arc::new(given),
            None,
        );
        let mut gradients = root.backward();
        if !self.leaves.is_empty() {
            let of_leaves = GradientsParams::from_params(&mut gradients, &block, &self.leaves);
            blocks::add_leaf_gradients(of_leaves);
        }
        let found = inputs.gradients.into_iter().map(|find| find(&gradients));
        let found: Vec<_> = found.collect();
        (!found.is_empty()).then(|| joined(found, &device))
    }
}

/// The gradient of what its tap is beside, whatever arrives itself.
#[derive(Debug)]
struct Given(Mutex<Option<DispatchTensor>>);

impl GradientSink for Given {
    fn receive(&self, _gradient: DispatchTensor) -> Option<DispatchTensor> {
        self.0.lock().take()
    }
}

/// A segment until its second run, of which there is one.
struct Waiting<S>(Mutex<Option<S>>);

impl<B, X, Y, F> GradientSink for Waiting<Segment<B, X, F>>
where
    B: Module + 'static,
    X: Activations,
    Y: Activations,
    F: Fn(&B, X) -> Y + Send + 'static,
{
    fn receive(&self, gradient: DispatchTensor) -> Option<DispatchTensor> {
        let segment = self.0.lock().take();
        let segment = segment.expect("a backward pass reaches every node once");
        let gradient = segment.run(Tensor::from_dispatch(gradient))?;
        Some(gradient.into_dispatch())
    }
}

impl<B, X, F> Debug for Waiting<Segment<B, X, F>> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({})", type_name::<B>())
    }
}
