use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use burn::config::Config;
use burn::module::ParamId;

/// The parameters that a rank of [`FusedReplicas`](crate::FusedReplicas) keeps without owning them.
///
/// With N ranks and Adam, a rank holds 1 + 2/N times the bytes of the parameters between steps with `State`, and
/// 3/N times with `Full`. The stages are those of ZeRO
/// ([Rajbhandari et al., 2020](https://arxiv.org/abs/1910.02054)).
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// Each rank keeps all weights. Optimizer states are with the owner, and gradients are sent there when they arrive: ZeRO
    /// 1 and 2.
    State,
    /// Each rank keeps only the weights that it owns (ZeRO 3). Another weight is fetched from its owner for every read, and
    /// dropped when no operation needs it any more. In a block under
    /// [`gradient_checkpointing`](crate::gradient_checkpointing()) it is dropped at the end of the run of the block.
    Full,
}

/// The rule that assigns each parameter an owner among the ranks of [`FusedReplicas`](crate::FusedReplicas). The owner
/// sums its gradients, holds its optimizer state and steps it.
///
/// The sum starts with the gradient of the owner and adds those of the other ranks in their order.
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Rank `id % N`, as in Burn's `MultiDeviceOptim::OptimSharded`. The results are the same without micro-batches.
    ByParamId,
    /// Assigns parameters, the largest first, to the rank that owns the fewest elements, so that no rank owns much more
    /// than the others. (The rule of [Graham, 1969](https://doi.org/10.1137/0117039) for sharing out work.)
    BySize,
    /// The first rank owns all, as with Burn's `MultiDeviceOptim::OptimMainDevice`.
    MainDevice,
}

/// The size of a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Size {
    pub(crate) id: ParamId,
    pub(crate) path: Arc<str>,
    pub(crate) elements: usize,
    pub(crate) bytes: usize,
}

impl Ownership {
    /// Assigns parameters of these sizes to `ranks`.
    pub(crate) fn assign(self, mut parameters: Vec<Size>, ranks: usize) -> HashMap<ParamId, usize> {
        let mut elements_of = vec![0; ranks];
        // Equal sizes are ordered by path, so that the owners are the same in every run.
        let key = |size: &Size| (Reverse(size.elements), size.path.clone());
        parameters.sort_by_cached_key(key);
        let owner = |Size { id, elements, .. }: Size| {
            let least = (0..ranks)
                .min_by_key(|rank| elements_of[*rank])
                .unwrap_or(0);
            let owner = match self {
                Self::ByParamId => (id.val() % ranks as u64) as usize,
                Self::BySize => least,
                Self::MainDevice => 0,
            };
            elements_of[owner] += elements;
            (id, owner)
        };
        parameters.into_iter().map(owner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ownership_by_size_isolates_largest_parameter() {
        let sizes = [900, 10, 10, 300, 290, 5, 280, 20];
        let parameters = sizes.iter().enumerate();
        let parameters = parameters.map(|(id, elements)| Size {
            id: ParamId::from(id as u64),
            path: id.to_string().into(),
            elements: *elements,
            bytes: 4 * elements,
        });
        let owners = Ownership::BySize.assign(parameters.collect(), 3);
        let of = |rank| {
            let owned = owners.iter().filter(|(_, owner)| **owner == rank);
            owned.map(|(id, _)| sizes[id.val() as usize]).sum::<usize>()
        };
        let mut elements = [of(0), of(1), of(2)];
        elements.sort();
        assert_eq!(elements, [345, 570, 900]);
    }
}
