use std::collections::HashMap;

use burn::module::{ParamGroup, ParamId};
use burn::optim::{ModuleOptimizer, SgdConfig};

/// Of which parameters the optimizer state is kept to the end of the pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateBackup {
    /// The bytes that they may have together.
    pub(crate) limit: usize,
}

impl Default for StateBackup {
    fn default() -> Self {
        Self { limit: 32 * 1024 }
    }
}

/// A second handle to the state of some parameters: an optimizer that panics takes the state that it was
/// given along.
pub(super) struct Backup {
    optimizer: ModuleOptimizer,
    parameters: Vec<ParamId>,
    /// Of parameters that have an optimizer of their own.
    spares: HashMap<ParamId, ModuleOptimizer>,
}

impl Backup {
    /// Of the states that `optimizer` has for `parameters`.
    pub(super) fn of(optimizer: &ModuleOptimizer, parameters: Vec<ParamId>) -> Self {
        Self {
            optimizer: only(optimizer.clone(), &parameters),
            parameters,
            spares: HashMap::new(),
        }
    }

    /// Keeps these, too.
    pub(super) fn add(&mut self, spares: &HashMap<ParamId, ModuleOptimizer>) {
        self.spares.clone_from(spares);
    }

    /// An optimizer with the state of `parameter` as it was, and no other, if it was kept.
    pub(super) fn of_one(&self, parameter: ParamId) -> Option<ModuleOptimizer> {
        if let Some(spare) = self.spares.get(&parameter) {
            return Some(spare.clone());
        }
        let kept = self.parameters.contains(&parameter);
        kept.then(|| only(self.optimizer.clone(), &[parameter]))
    }
}

/// Burn's optimizer drops the states of a group that another optimizer is added for.
fn only(optimizer: ModuleOptimizer, parameters: &[ParamId]) -> ModuleOptimizer {
    let parameters = ParamGroup::from_ids(parameters.to_vec());
    let others = ParamGroup::all().exclude(parameters);
    optimizer.with_group(others, SgdConfig::new().build(), None)
}
