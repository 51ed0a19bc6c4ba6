use std::sync::Arc;
use std::time::Duration;

use burn::backend::DispatchTensor;
use burn::module::{Module, ParamId};
use burn::tensor::{DType, GradientCheckpointingStrategy, Shape};

use super::activations::Activations;
use super::host::KeptInput;
use super::keep::Leaves;
use super::name::located;
use super::outputs::{Forms, Roots};
use super::same::Same;
use super::worker;
use crate::error::FusedError;
use crate::memory::{self, BlockRun};
use crate::pass::{Readers, Scope};
use crate::random::{Stream, Witness};
use crate::slot::{KeptStatistics, OwnLeaf, with_own_leaves};
use crate::tap::sweep;

/// Second runs of a block that other threads disturb by drawing random numbers, before it is given up.
const ATTEMPTS: usize = 5;

/// A block that has run without recording, with what its second run needs.
pub(super) struct Segment<B, X, F> {
    /// The parameters that have no slot are constants in it.
    pub(super) block: B,
    /// Those of them that are tracked.
    pub(super) slotless: Vec<ParamId>,
    pub(super) name: String,
    pub(super) input: KeptInput<X>,
    /// Which of the float inputs are tracked.
    pub(super) tracked: Vec<bool>,
    pub(super) forward: F,
    pub(super) strategy: GradientCheckpointingStrategy,
    /// What the first run has returned.
    pub(super) outputs: Vec<(Shape, DType)>,
    pub(super) scope: Scope,
    pub(super) random: Stream,
    /// The end of the random numbers of the first run.
    pub(super) witness: Witness,
    /// How long the first run took.
    pub(super) took: Duration,
    /// The parameters that wait for the second run.
    pub(super) readers: Arc<Readers>,
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
        pass.arrive();
        if let Some(run) = self.run {
            memory::enter_second_run(run, &self.name);
        }
        let (strategy, run) = (self.strategy, self.run);
        let readers = self.readers.clone();
        let recorded = {
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
            witness,
            took,
            ..
        } = self;
        let input = self.input.take();
        let untouched = random.untouched();
        // Then it matters to nobody what other threads draw.
        let draws_nothing = witness.agrees(&untouched);
        let mut inputs = match draws_nothing {
            true => vec![input],
            false => vec![input; ATTEMPTS],
        };
        let mut before: Option<Same> = None;

        while let Some(input) = inputs.pop() {
            let (block, mut leaves_of_block) = with_own_leaves(block.clone(), &slotless);
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
                let (output, witness) = located(run, place);
                (output, witness, forward)
            };
            // Only what a closure has captured can be a tensor of the graph that is locked now.
            let (output, ended, given_back) = match size_of::<F>() {
                0 => again(),
                _ => worker::run(again, took, &name),
            };
            forward = given_back;
            let mut forms = Forms::default();
            let output = output.map_floats(&mut forms);
            assert!(
                forms.found == outputs,
                "the second run of the recomputed block {name} returned other tensors than the first: \
                 it must compute the same from its inputs"
            );
            let mut seen = inside.noted();
            seen.add(ended);
            if draws_nothing || seen.agrees(&witness) || seen.agrees(&untouched) {
                return Ok(Recorded { output, leaves });
            }
            // Other threads have drawn. If the numbers change nothing, there is no harm in that.
            let (output, same) = Same::of(output);
            if before.as_ref() == Some(&same) {
                return Ok(Recorded { output, leaves });
            }
            before = Some(same);
            inside.abandon();
            drop((output, leaves));
            random.devices.iter().for_each(sweep);
        }
        Err(FusedError::RandomNumbers {
            place: format!("the recomputed block {name}"),
        })
    }
}
