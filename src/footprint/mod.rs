//! The bytes that the parameters and optimizer states of a training hold between its steps.

mod resident;
mod states;

use backburn_base::caught::catch;
use burn::module::Module;
use burn::optim::ModuleOptimizer;

use crate::config::FusedConfig;

pub(crate) use resident::Resident;
pub(crate) use states::{StateBytes, measure, parameters};

/// Returns the bytes that a training of `model` allocates on the host: states, averages, and two gradients of the largest parameter
/// stepped there. States that the optimizer can't create are not counted; the first step reports the error.
pub(crate) fn host_allocation<M: Module>(
    model: &M,
    optimizer: &ModuleOptimizer,
    config: &FusedConfig,
) -> usize {
    let resident = host_resident(model, optimizer, config);
    resident.host_states + 2 * resident.host_gradient
}

/// Returns the bytes of states, averages and buffered gradients on the host.
pub(crate) fn host_states<M: Module>(
    model: &M,
    optimizer: &ModuleOptimizer,
    config: &FusedConfig,
) -> usize {
    host_resident(model, optimizer, config).host_states
}

fn host_resident<M: Module>(
    model: &M,
    optimizer: &ModuleOptimizer,
    config: &FusedConfig,
) -> Resident {
    if config.offload.is_none() {
        return Resident::default();
    }
    let parameters = parameters(model);
    let states = catch(|| measure(optimizer, &parameters, false)).ok();
    let states = states.and_then(Result::ok).map(|states| states.bytes);
    let states = states.unwrap_or_else(|| vec![0; parameters.len()]);
    Resident::of(&parameters, &states, config, false)
}
