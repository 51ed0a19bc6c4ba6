//! The gradients of the parameters that are ordinary leaves, retained to the end of the pass.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::device::{Written, moved, sent};
use crate::error::FusedError;
use crate::policy::{self, Accumulation, Goal, Plan, Update, is_finite};
use crate::replica::Group;
use crate::slot::{Inventory, Role};
use crate::tap::lift;

/// The gradients of parameters of `module` once more, where these are; the tensors are shared.
pub(super) fn copy<M: Module>(module: &M, gradients: &GradientsParams) -> GradientsParams {
    let mut copy = Copy {
        gradients,
        copied: GradientsParams::new(),
    };
    module.visit(&mut copy);
    copy.copied
}

struct Copy<'a> {
    gradients: &'a GradientsParams,
    copied: GradientsParams,
}

impl ModuleVisitor for Copy<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.get::<D>(param.id) {
            let device = param.base().device().inner();
            self.copied.register(param.id, sent(gradient, &device));
        }
    }
}

/// Gradients of a pass, one after the other added to what was accumulated before, which stays as it is.
pub(super) fn sum<M: Module>(
    module: &M,
    plan: &Plan,
    sums: &GradientsParams,
    mut gradients: Vec<GradientsParams>,
) -> GradientsParams {
    let last = gradients.pop().unwrap_or_default();
    if gradients.is_empty() {
        return accumulated(module, plan, sums, last);
    }
    let mut goes_on = plan.clone();
    goes_on.goal = Goal::Accumulate;
    if plan.goal != Goal::Accumulate {
        // Only what was accumulated before is in another type.
        goes_on.accumulation = Accumulation::default();
    }
    let before = gradients
        .into_iter()
        .fold(copy(module, sums), |sums, gradients| {
            accumulated(module, &goes_on, &sums, gradients)
        });
    accumulated(module, plan, &before, last)
}

/// Gradients by rank, as [`sum`] takes them, on the device of the parameters of `module`: each parameter's in the order
/// in which `group` adds them up.
pub(super) fn in_order<M: Module>(
    module: &M,
    group: &Group,
    by_rank: Vec<GradientsParams>,
) -> Vec<GradientsParams> {
    let mut order = InOrder {
        group,
        turns: by_rank.iter().map(|_| GradientsParams::new()).collect(),
        by_rank,
    };
    module.visit(&mut order);
    order.turns.retain(|turn| !turn.is_empty());
    order.turns
}

struct InOrder<'a> {
    group: &'a Group,
    by_rank: Vec<GradientsParams>,
    turns: Vec<GradientsParams>,
}

impl ModuleVisitor for InOrder<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let by_rank = self.by_rank.iter_mut();
        let by_rank = by_rank.map(|gradients| gradients.remove::<D>(param.id));
        let in_order = self.group.in_order(param.id, by_rank.collect());
        let device = param.base().device().inner();
        for (turn, gradient) in self.turns.iter_mut().zip(in_order) {
            turn.register(param.id, moved(gradient, &device));
        }
    }
}

/// `module` with the values that `first` has for the parameters that are ordinary leaves.
pub(super) fn take_over<M: Module>(module: M, first: &M, inventory: &Inventory) -> M {
    let mut values = Values {
        inventory,
        found: HashMap::new(),
    };
    first.visit(&mut values);
    module.map(&mut values)
}

struct Values<'a> {
    inventory: &'a Inventory,
    found: HashMap<ParamId, Box<dyn Any>>,
}

impl ModuleVisitor for Values<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.inventory.role(param.id) == Some(Role::Retained) {
            self.found.insert(param.id, Box::new(param.base().inner()));
        }
    }
}

impl ModuleMapper for Values<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let found = self.found.remove(&param.id);
        let Some(Ok(found)) = found.map(|found| found.downcast::<Tensor<D>>()) else {
            return param;
        };
        let (id, value, mapper) = param.consume();
        let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
        let value = lift(moved(*found, &value.device().inner()), strategy);
        Param::from_mapped_value(id, value.require_grad(), mapper)
    }
}

/// The gradients of a pass with what was accumulated of those before, which stays as it is. What goes on being
/// accumulated is in the type of the sums, the rest in that of the parameters.
pub(super) fn accumulated<M: Module>(
    module: &M,
    plan: &Plan,
    sums: &GradientsParams,
    gradients: GradientsParams,
) -> GradientsParams {
    let mut add = Add {
        plan,
        sums,
        gradients,
    };
    module.visit(&mut add);
    add.gradients
}

struct Add<'a> {
    plan: &'a Plan,
    sums: &'a GradientsParams,
    gradients: GradientsParams,
}

impl ModuleVisitor for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let goes_on = self.plan.goal == Goal::Accumulate;
        let sum = self.sums.get::<D>(param.id);
        let gradient = self.gradients.remove::<D>(param.id);
        let total = match (sum, gradient) {
            (None, None) => return,
            (Some(sum), None) if goes_on => sum,
            // No gradient has come in the last pass: the sum is all there is.
            (Some(sum), None) => {
                let value = param.base();
                policy::in_type(sent(sum, &value.device().inner()), value.dtype())
            }
            (None, Some(gradient)) if goes_on => self.plan.accumulation.begin(gradient),
            (None, Some(gradient)) => gradient,
            (Some(sum), Some(gradient)) if goes_on => policy::added(&sum, gradient),
            (Some(sum), Some(gradient)) => policy::total(&sum, gradient),
        };
        self.gradients.register(param.id, total);
    }
}

/// Asks whether the device has computed the parameters.
pub(super) fn ask_written<M: Module>(module: &M, inventory: &Inventory, written: &mut Written) {
    module.visit(&mut Ask { inventory, written });
}

struct Ask<'a> {
    inventory: &'a Inventory,
    written: &'a mut Written,
}

impl ModuleVisitor for Ask<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        match self.inventory.get(param.id) {
            Some(entry) if entry.role == Role::Retained => {
                self.written.ask(&entry.path, &param.base().inner());
            }
            _ => {}
        }
    }
}

/// Sends the gradients through the hooks, and returns what comes out.
pub(super) fn call_hooks<M: Module>(
    module: &M,
    inventory: &Inventory,
    plan: &Plan,
    gradients: GradientsParams,
) -> Result<GradientsParams, FusedError> {
    let mut call = Call {
        inventory,
        plan,
        gradients,
        error: None,
    };
    module.visit(&mut call);
    call.error.map_or(Ok(call.gradients), Err)
}

struct Call<'a> {
    inventory: &'a Inventory,
    plan: &'a Plan,
    gradients: GradientsParams,
    error: Option<FusedError>,
}

impl ModuleVisitor for Call<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (Some(entry), None) = (self.inventory.get(param.id), &self.error) else {
            return;
        };
        let Some(gradient) = self.gradients.remove::<D>(param.id) else {
            return;
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

/// Whether all elements of the gradients of parameters of `module` are finite; waits for the device.
pub(super) fn are_finite<M: Module>(module: &M, gradients: &GradientsParams) -> bool {
    let mut look = Finite {
        gradients,
        finite: true,
    };
    module.visit(&mut look);
    look.finite
}

struct Finite<'a> {
    gradients: &'a GradientsParams,
    finite: bool,
}

impl ModuleVisitor for Finite<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.get::<D>(param.id) {
            self.finite &= is_finite(&gradient);
        }
    }
}

/// `module` after the update of its parameters that have gradients.
pub(super) struct Stepped<M> {
    pub(super) module: M,
    /// How an optimizer has panicked: its parameter, and those after it, are as they were.
    pub(super) panic: Option<Box<dyn Any + Send>>,
}

/// Steps the parameters of `module` that have gradients, one by one, as those are stepped whose gradients are
/// released.
pub(super) fn step<M: Module>(
    module: &M,
    inventory: &Inventory,
    gradients: GradientsParams,
    update: &mut Update,
) -> Stepped<M> {
    let mut step = Step {
        inventory,
        gradients,
        update,
        panic: None,
    };
    let module = match step.gradients.is_empty() {
        true => module.clone(),
        false => module.clone().map(&mut step),
    };
    let panic = step.panic;
    Stepped { module, panic }
}

struct Step<'a> {
    inventory: &'a Inventory,
    gradients: GradientsParams,
    update: &'a mut Update,
    panic: Option<Box<dyn Any + Send>>,
}

impl ModuleMapper for Step<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (Some(entry), None) = (self.inventory.get(param.id), &self.panic) else {
            return param;
        };
        let Some(gradient) = self.gradients.remove::<D>(param.id) else {
            return param;
        };
        let (id, value, mapper) = param.consume();
        let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
        let before = value.inner();
        let stepped = self
            .update
            .step(&entry.path, id, before.clone(), gradient, false);
        self.panic = stepped.result.err();
        let value = lift(stepped.value.unwrap_or(before), strategy);
        Param::from_mapped_value(id, value.require_grad(), mapper)
    }
}
