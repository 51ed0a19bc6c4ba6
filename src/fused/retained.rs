//! The gradients of the parameters that are ordinary leaves.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;

use crate::error::FusedError;
use crate::policy::Plan;
use crate::slot::Inventory;

/// The sum of gradients of parameters of `module`.
pub(super) fn sum<M: Module>(
    module: &M,
    gradients: impl Iterator<Item = GradientsParams>,
) -> GradientsParams {
    let mut sum = GradientsAccumulator::new();
    gradients.for_each(|gradients| sum.accumulate(module, gradients));
    sum.grads()
}

/// Sends the gradients of the parameters that are ordinary leaves, added to those accumulated, through
/// the hooks, and leaves in `gradients` what comes out.
pub(super) fn call_hooks<M: Module>(
    module: &M,
    inventory: &Inventory,
    plan: &Plan,
    gradients: &mut GradientsParams,
    accumulated: &GradientsParams,
) -> Result<(), FusedError> {
    let mut call = Call {
        inventory,
        plan,
        gradients,
        accumulated,
        error: None,
    };
    module.visit(&mut call);
    call.error.map_or(Ok(()), Err)
}

struct Call<'a> {
    inventory: &'a Inventory,
    plan: &'a Plan,
    gradients: &'a mut GradientsParams,
    accumulated: &'a GradientsParams,
    error: Option<FusedError>,
}

impl ModuleVisitor for Call<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (Some(entry), None) = (self.inventory.get(param.id), &self.error) else {
            return;
        };
        let arrived = self.gradients.remove::<D>(param.id);
        let gradient = match (self.accumulated.get::<D>(param.id), arrived) {
            (Some(sum), Some(gradient)) => sum.add(gradient),
            (Some(gradient), None) | (None, Some(gradient)) => gradient,
            (None, None) => return,
        };
        let value = param.base().inner();
        let hooks = &self.plan.hooks;
        match hooks.call(&entry.path, param.id, &value, gradient) {
            Ok(Some(gradient)) => self.gradients.register(param.id, gradient),
            Ok(None) => {}
            Err(error) => self.error = Some(error),
        }
    }
}
