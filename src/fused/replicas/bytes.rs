use burn::module::Module;

use crate::weights::{FusedForm, Role};

/// The bytes of the weights and gradients of one rank of [`FusedReplicas`](crate::FusedReplicas), without its
/// optimizer states, activations, and parameters that are on all ranks.
///
/// They are counted by rank: ranks on one device may share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankBytes {
    /// Of the parameters that the rank owns: so large is its part of an optimizer state as large as the parameters.
    pub owned: usize,
    /// Of the weights that it holds between steps.
    pub at_rest: usize,
    /// The most bytes at once in the last pass: `at_rest`, the weights that were gathered, and the gradients that had
    /// arrived. A gradient counts on the rank where it arrives, and then with the owner until it is used.
    pub most: usize,
}

impl RankBytes {
    pub(super) fn of<M: Module>(form: &FusedForm<M>) -> Self {
        let layout = &form.layout;
        let parameters = form.inventory.sizes(Role::Released);
        let owned = parameters.filter(|size| layout.owns(size.id));
        let owned = owned.map(|size| size.bytes).sum();
        let at_rest = form.views.bytes_at_rest();
        Self {
            owned,
            at_rest,
            most: at_rest + layout.most_held(),
        }
    }
}
