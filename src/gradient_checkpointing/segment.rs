use std::sync::Arc;
use std::time::Duration;

use burn::backend::DispatchTensor;
use burn::module::Module;
use burn::tensor::GradientCheckpointingStrategy;

use super::activations::Activations;
use super::fingerprint::Fingerprint;
use super::host::KeptInput;
use super::keep::Leaves;
use super::name::located;
use super::outputs::{Forms, Roots};
use super::worker;
use crate::device::is_cubecl;
use crate::error::FusedError;
use crate::memory::{self, BlockRun};
use crate::pass::{Readers, Scope};
use crate::random::Stream;
use crate::slot::{KeptStatistics, OwnLeaf, with_frozen, with_own_leaves};
use crate::tap::sweep;

/// Second runs of a block that other threads disturb by drawing random numbers, before it is given up.
const ATTEMPTS: usize = 5;

/// A block that has run without recording, with what its second run needs.
pub(super) struct Segment<B, X, F> {
    /// The parameters that have no slot are constants in it.
    pub(super) block: B,
    /// The places of those.
    pub(super) slotless: Vec<usize>,
    pub(super) name: String,
    pub(super) input: KeptInput<X>,
    /// Which of the float inputs are tracked.
    pub(super) tracked: Vec<bool>,
    pub(super) forward: F,
    pub(super) strategy: GradientCheckpointingStrategy,
    /// What the first run has returned.
    pub(super) outputs: Forms,
    pub(super) scope: Scope,
    pub(super) random: Stream,
    /// Of the outputs of the first run, if random numbers were drawn.
    pub(super) fingerprint: Option<Fingerprint>,
    /// How long the first run took.
    pub(super) took: Duration,
    /// The parameters that wait for the second run.
    pub(super) readers: Arc<Readers>,
    /// Of a block that is in no other.
    pub(super) index: Option<usize>,
    /// For the memory recorder.
    pub(super) run: Option<BlockRun>,
}

/// A second run that has been recorded.
struct Recorded<Y> {
    output: Y,
    /// In the order of the inputs, then the parameters without a slot.
    leaves: Vec<OwnLeaf>,
}

impl<B, X, Y, F> Segment<B, X, F>
where
    B: Module + 'static,
    X: Activations,
    Y: Activations,
    F: Fn(&B, X) -> Y + Send + 'static,
{
    /// Runs the block again, recorded, and back with the `gradients` of its outputs. Returns those of the
    /// tracked tensors that it computes with, as far as they have one: none if the pass has failed.
    pub(super) fn run(self, gradients: Vec<Option<DispatchTensor>>) -> Vec<Option<DispatchTensor>> {
        let pass = self.scope.pass.clone();
        if let Some(run) = self.run {
            memory::enter_second_run(run, &self.name);
        }
        if let Some(index) = self.index {
            pass.enter_block(index);
        }
        let (strategy, run) = (self.strategy, self.run);
        let readers = self.readers.clone();
        let recorded = {
            let _turn = pass.take_turn();
            let _statistics = KeptStatistics::of(&self.block);
            self.record()
        };
        readers.settle();
        pass.blocks.done();
        let Recorded { output, leaves } = match recorded {
            Ok(recorded) => recorded,
            Err(error) => {
                pass.fail(error);
                return Vec::new();
            }
        };
        if let Some(run) = run {
            memory::leave_second_run(run);
        }
        let mut roots = Roots {
            gradients: gradients.into_iter(),
            strategy,
            root: None,
        };
        drop(output.map_floats(&mut roots));
        let root = roots.root.expect("an output has called for the block");
        let gradients = root.backward();
        leaves.into_iter().map(|find| find(&gradients)).collect()
    }

    /// Runs the block again, recorded.
    fn record(self) -> Result<Recorded<Y>, FusedError> {
        let Self {
            block,
            slotless,
            name,
            tracked,
            mut forward,
            strategy,
            outputs,
            scope,
            random,
            took,
            fingerprint,
            ..
        } = self;
        // Each attempt takes one; the last leaves no other handle.
        let attempts = if fingerprint.is_some() { ATTEMPTS } else { 1 };
        let has_one_stream = !random.devices.iter().any(is_cubecl);
        let mut inputs = vec![self.input.take(); attempts];

        while let Some(input) = inputs.pop() {
            let block = match scope.pass.placement() {
                None => block.clone(),
                Some(placement) => with_frozen(block.clone(), placement),
            };
            let (block, mut leaves_of_block) = with_own_leaves(block, &slotless);
            let mut leaves = Leaves {
                strategy,
                tracked: tracked.iter(),
                leaves: Vec::new(),
            };
            let input = input.map_floats(&mut leaves);
            let mut leaves = leaves.leaves;
            leaves.append(&mut leaves_of_block);

            let second_run = scope.second_run(random.seed);
            let inside = second_run.clone();
            let (stream, place) = (random.clone(), name.clone());
            let again = move || {
                let _scope = second_run.enter();
                let place = || {
                    format!(
                        "the second run of the recomputed block {place}, whose parameters and those \
                         before it are unchanged,"
                    )
                };
                let run = || stream.during(2, || forward(&block, input));
                (located(run, place), forward)
            };
            // What a closure has captured can be a tensor of the graph that is locked now. (A device that has
            // a stream for every thread is left on this one.)
            let (output, given_back) = match size_of::<F>() > 0 && has_one_stream {
                true => worker::run(again, took, &name),
                false => again(),
            };
            forward = given_back;
            let mut forms = Forms::default();
            let output = output.map_floats(&mut forms);
            assert!(
                forms.found == outputs.found,
                "the second run of the recomputed block {name} returned other tensors than the first: \
                 it must compute the same from its inputs"
            );
            let Some(first) = &fingerprint else {
                return Ok(Recorded { output, leaves });
            };
            let (output, again) = Fingerprint::of(output);
            if *first == again {
                return Ok(Recorded { output, leaves });
            }
            inside.abandon();
            drop((output, leaves));
            random.devices.iter().for_each(sweep);
        }
        Err(FusedError::RandomNumbers {
            place: format!("the second run of the recomputed block {name}"),
        })
    }
}
