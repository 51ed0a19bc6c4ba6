use std::any::type_name;
use std::sync::Arc;

use backburn_base::caught::catch;
use backburn_base::{is_cubecl, is_remote, lift};
use burn::backend::DispatchTensor;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::activations::Activations;
use super::detached::InputKind;
use super::fingerprint::Fingerprint;
use super::outputs::{OutputSpecs, backward_root};
use super::saved_input::SavedInput;
use crate::error::FusedError;
use crate::parameters::Statistics;
use crate::pass::{BlockReads, FailedIn, NumberSource, RandomRun, Scope, StepEvent};
use crate::random::{RandomStream, Run};
use crate::tap::collect_graph;
use crate::weights::{OwnLeaf, own_leaf, with_frozen, with_own_leaves};

/// A block after its untracked first run, with the state for its recomputation.
pub(super) struct CheckpointedBlock<B, X, F> {
    pub(super) name: String,
    pub(super) scope: Scope,
    pub(super) call: BlockCall<B, X, F>,
    pub(super) first: FirstRun,
    /// The parameters that the first run read.
    pub(super) block_reads: Arc<BlockReads>,
    /// Index of the block in the pass; `None` for a nested block.
    pub(super) index: Option<usize>,
}

/// The call that is repeated by the recomputation.
pub(super) struct BlockCall<B, X, F> {
    /// The block, in which parameters that are not attached are constants.
    pub(super) block: B,
    /// Indices of the parameters that are not attached.
    pub(super) tracked_and_not_attached: Vec<usize>,
    pub(super) input: SavedInput<X>,
    /// The kind of each float input.
    pub(super) kinds: Vec<InputKind>,
    pub(super) forward: F,
}

/// Properties of the first run that the recomputation must reproduce.
pub(super) struct FirstRun {
    outputs: OutputSpecs,
    /// The random numbers of the run, whose seed is that of its nested blocks.
    stream: RandomStream,
    source: NumberSource,
    /// The outputs in short, if they can be read at once.
    fingerprint: Option<Fingerprint>,
    /// The running statistics of the block before it.
    statistics: Statistics,
}

impl FirstRun {
    /// Captures the properties of a run that returned `output`.
    pub(super) fn of<Y: Activations>(
        output: &Y,
        outputs: OutputSpecs,
        (stream, source): (RandomStream, NumberSource),
        statistics: Statistics,
    ) -> Self {
        let draws = !matches!(source, NumberSource::Nothing);
        let is_slow = |device: &Device| is_cubecl(device) || (is_remote(device) && !draws);
        let is_compared = !outputs.device.as_ref().is_some_and(is_slow);
        Self {
            fingerprint: is_compared.then(|| Fingerprint::of(output, !draws)),
            outputs,
            stream,
            source,
            statistics,
        }
    }
}

/// The tracked result of a recomputation.
struct Recomputation<Y> {
    output: Y,
    /// Leaves of the tracked inputs, then of the parameters that are not attached.
    leaves: Vec<OwnLeaf>,
}

impl<B, X, Y, F> CheckpointedBlock<B, X, F>
where
    B: Module + 'static,
    X: Activations,
    Y: Activations,
    F: Fn(&B, X) -> Y + Copy + Send + 'static,
{
    /// Recomputes the block and runs its backward pass from the `gradients` of its outputs. Returns the gradients of its
    /// tracked tensors, or an empty vector if the pass has failed.
    pub(super) fn run(
        self,
        gradients: Vec<Option<DispatchTensor>>,
        signal: DispatchTensor,
    ) -> Vec<Option<DispatchTensor>> {
        let pass = self.scope.pass.clone();
        if let Some(observers) = &pass.observers {
            let (index, name) = (self.index, &*self.name);
            let outputs = self.first.outputs.bytes();
            observers.emit(StepEvent::BlockRecompute {
                index,
                name,
                outputs,
            });
        }
        if let Some(index) = self.index {
            pass.blocks.enter(index);
        }
        let (strategy, index) = (self.first.outputs.strategy, self.index);
        let block_reads = self.block_reads.clone();
        let recorded = self.recompute();
        block_reads.resolve();
        let Recomputation { output, leaves } = match recorded {
            Ok(recorded) => recorded,
            Err(error) if pass.is_over() => panic!("{error}"),
            Err(error) => {
                pass.fail(FailedIn::Closure, error);
                return Vec::new();
            }
        };
        if let Some(observers) = &pass.observers {
            observers.emit(StepEvent::BlockRecomputed { index });
        }
        let signal = Tensor::from_dispatch(signal);
        let root = backward_root(&output, gradients, &signal, strategy, (&pass, index));
        drop(output);
        let root = root.expect("the gradient of an output triggers the recomputation");
        let gradients = root.backward();
        leaves.into_iter().map(|find| find(&gradients)).collect()
    }

    /// Recomputes the block.
    fn recompute(self) -> Result<Recomputation<Y>, FusedError> {
        let Self {
            name,
            scope,
            call,
            first,
            block_reads,
            ..
        } = self;
        let (block, forward) = (call.block, call.forward);
        let repeats = matches!(first.source, NumberSource::Repeated(_));
        let draws = !matches!(first.source, NumberSource::Nothing);
        let random = repeats.then(|| first.stream.clone());
        let device = first.outputs.device.clone();
        let turn = random
            .as_ref()
            .map(|random| RandomRun::repeat(&scope, &name, random));
        let _turn = turn.transpose()?;
        let strategy = first.outputs.strategy;
        // The run owns its inputs, so that they are freed as soon as possible.
        let input = call.input.take(&name)?;
        let recorded = with_frozen(block.clone(), scope.pass.blocks.engine());
        let (recorded, leaves_of_block) = with_own_leaves(recorded, &call.tracked_and_not_attached);
        let (mut kinds, mut leaves) = (call.kinds.into_iter(), Vec::new());
        let input = input.map_floats(&mut |tensor| match kinds.next() {
            Some(InputKind::WithoutAutodiff) => tensor,
            Some(InputKind::Tracked) => {
                let leaf = lift(tensor, strategy).require_grad();
                leaves.push(own_leaf(leaf.clone()));
                leaf
            }
            _ => lift(tensor, strategy),
        });
        leaves.extend(leaves_of_block);

        let (inside, reads) = scope.recompute(first.stream.seed, first.source);
        let run = || {
            random.iter().for_each(RandomStream::start);
            let output = forward(&recorded, input);
            if let Some(mut random) = random.clone() {
                random.advance(Run::RecomputedBlock);
            }
            output
        };
        let output = {
            let _statistics = first.statistics.put_until_dropped(&block);
            let _scope = inside.enter();
            let context = || {
                format!(
                    "the second run of the recomputed block {name} (its parameters and those of earlier \
                    blocks are unchanged)"
                )
            };
            with_panic_context(run, context)
        };
        let outputs_differ = |first: Fingerprint| first.differs_from(&output);
        let outputs_differ = first.fingerprint.is_some_and(outputs_differ);
        let first_reads = &block_reads.reads;
        let differing_read = first_reads.first_beyond(&reads).map(|path| (path, false));
        let differing_read =
            differing_read.or_else(|| Some((reads.first_beyond(first_reads)?, true)));
        let specs = OutputSpecs::of(&output);
        assert!(
            differing_read.is_some() || specs.tensors == first.outputs.tensors,
            "the second run of the recomputed block {name} returned tensors of other shapes or types than \
            the first: it must compute the same result from its inputs"
        );
        let error = match differing_read {
            None if !outputs_differ => return Ok(Recomputation { output, leaves }),
            None => FusedError::recomputation_differs(&name),
            Some((path, is_second)) => FusedError::BlockReads {
                name,
                path: path.to_string(),
                is_second,
            },
        };
        if outputs_differ && draws {
            // The block draws random numbers without the lock, so later passes take the lock.
            scope.pass.blocks.observations.record_draws();
        }
        drop((output, leaves));
        device.iter().for_each(collect_graph);
        Err(error)
    }
}

/// Returns the name of a block for messages: its type, and the path of the parameters that it read.
pub(super) fn block_name<B>(block_reads: &BlockReads) -> String {
    let module = block_reads.reads.common_module();
    match module.is_empty() {
        true => format!("`{}`", type_name::<B>()),
        false => format!("`{module}` (`{}`)", type_name::<B>()),
    }
}

/// Runs `work`. The message of a panic is prefixed with `context`.
pub(super) fn with_panic_context<R>(
    work: impl FnOnce() -> R,
    context: impl FnOnce() -> String,
) -> R {
    catch(work).unwrap_or_else(|panic| match panic.text() {
        Some(message) => panic!("{} panicked: {message}", context()),
        None => panic.resume(),
    })
}
