//! The first run of a recomputed block.

use std::sync::Arc;

use burn::module::Module;

use super::activations::Activations;
use super::checkpointed_block::{
    BlockCall, CheckpointedBlock, FirstRun, block_name, with_panic_context,
};
use super::detached::{Detached, lifted};
use super::node::CheckpointNode;
use super::outputs::{OutputSpecs, tap_outputs};
use super::saved_input::SavedInput;
use crate::parameters::{Statistics, running_statistics};
use crate::pass::{RandomRun, Scope};
use crate::weights::{tracked_and_not_attached, with_constants, with_frozen};

/// Runs a block untracked, and puts a node on the tape that recomputes it when the gradients of its outputs have arrived.
pub(super) fn run_checkpointed<B, X, Y>(
    scope: Scope,
    block: &B,
    input: X,
    random: RandomRun,
    index: Option<usize>,
    forward: impl Fn(&B, X) -> Y + Copy + Send + 'static,
) -> Y
where
    B: Module + 'static,
    X: Activations,
    Y: Activations,
{
    if let Some(index) = index {
        scope.pass.blocks.enter(index);
    }
    let (tracked_and_not_attached, values): (Vec<_>, Vec<_>) =
        tracked_and_not_attached(block).into_iter().unzip();
    let block = with_constants(block.clone(), &tracked_and_not_attached);
    let Detached {
        input,
        kinds,
        mut tracked,
        strategy,
    } = Detached::of(input);
    let (inside, block_reads) = scope.unrecorded(&random);
    // Both runs start with these running statistics.
    let statistics = Statistics::merged(&block, &running_statistics(&block));
    let on = random.stream.devices.first().cloned();
    let (lifted, constants) = lifted(input.clone(), &kinds, strategy);
    let (output, numbers) = {
        let _entered = inside.enter();
        let context = || {
            let name = block_name::<B>(&block_reads);
            format!("the first run of the recomputed block {name}")
        };
        let run = || {
            let block = with_frozen(block.clone(), scope.pass.blocks.engine());
            let output = forward(&block, lifted);
            (output, random.end())
        };
        let _running = scope.pass.blocks.running_blocks.clone();
        with_panic_context(run, context)
    };
    if let Some(device) = &on {
        scope.pass.blocks.collect_graph(device);
    }
    if let Some(index) = index {
        scope.pass.blocks.leave_first_run(index, &block_reads);
    }
    if !scope.records() {
        return output;
    }
    let name = block_name::<B>(&block_reads);
    let specs = OutputSpecs::of(&output);
    assert!(
        !specs.tracked,
        "the recomputed block {name} returns a tensor that depends on a trainable tensor from outside \
         of it: pass that as an input"
    );
    tracked.extend(values);
    let Some(device) = specs.device.clone() else {
        return output;
    };
    if block_reads.reads.is_empty() && tracked.is_empty() {
        // No gradient is needed.
        return output;
    }
    let (outputs, strategy) = (specs.tensors.len(), specs.strategy);
    let (pass, node_name) = (scope.pass.clone(), name.clone());
    let reads_parameters = !block_reads.reads.is_empty();
    let checkpointed = CheckpointedBlock {
        name,
        call: BlockCall {
            block,
            tracked_and_not_attached,
            input: SavedInput::new(input, scope.pass.blocks.input_offload.as_ref()),
            kinds,
            forward,
        },
        first: FirstRun::of(&output, specs, numbers, statistics),
        scope,
        block_reads,
        index,
    };
    let recompute = Box::new(|gradients, signal| checkpointed.run(gradients, signal));
    let node = Arc::new(CheckpointNode::new(
        pass,
        node_name,
        reads_parameters,
        recompute,
        outputs,
    ));
    let anchor = node.anchor(tracked, &device, strategy);
    tap_outputs(output, &node, &anchor, strategy, &constants)
}
