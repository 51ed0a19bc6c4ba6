use backburn_base::{ModelKey, list};
use burn::module::Module;

use crate::parameters::running_statistics;

/// The properties of a model that the planner needs while the model itself does not exist.
pub(super) struct Outline {
    pub(super) key: ModelKey,
    pub(super) has_statistics: bool,
    /// The number of elements of each parameter; `true` if it has a value.
    pub(super) sizes: Vec<(usize, bool)>,
}

impl Outline {
    /// Returns the properties of `model`.
    pub(super) fn of<M: Module>(model: &M) -> Self {
        let parameters = list(model).into_iter().map(|it| it.param);
        Self {
            key: ModelKey::of(model),
            has_statistics: !running_statistics(model).is_empty(),
            sizes: parameters
                .map(|param| (param.shape().num_elements(), param.is_initialized()))
                .collect(),
        }
    }
}
