use burn::module::Module;

use crate::weights::{AttachedModule, Role};

/// The bytes of the weights and gradients of one rank of [`FusedReplicas`](crate::FusedReplicas), without its
/// optimizer states, activations, and parameters that are on all ranks.
///
/// They are counted by rank: ranks on one device may share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankBytes {
    /// Bytes of the parameters that the rank owns. Optimizer states as large as the parameters take the same number of
    /// bytes.
    pub owned: usize,
    /// Bytes of the weights that the rank holds between steps.
    pub between_steps: usize,
    /// The most bytes held in the last pass: `between_steps`, gathered weights, and gradients in the type in which they are computed. A
    /// gradient counts for the rank that computes it, then for the owner until it is applied or added to a buffer, which does not
    /// count. A single rank counts no gradients.
    pub peak: usize,
}

impl RankBytes {
    pub(super) fn of<M: Module>(attached: &AttachedModule<M>) -> Self {
        let context = &attached.context;
        let parameters = attached.inventory.sizes(Role::Released);
        let owned = parameters.filter(|size| context.owns(size.id));
        let owned = owned.map(|size| size.bytes).sum();
        let between_steps = attached.local_params.stored_bytes();
        let member = context.membership.as_ref();
        let peak = member.map_or(0, |member| member.group.memory_tracker.peak(member.rank));
        Self {
            owned,
            between_steps,
            peak: between_steps + peak,
        }
    }
}
