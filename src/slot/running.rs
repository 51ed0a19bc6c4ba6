use std::any::Any;
use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

/// The running statistics among the parameters of `module`, found by reading alone: clones share them, and other threads
/// may be computing with them.
///
/// A parameter shows itself to a visitor, a statistic a parameter that is made for the visit. So the place in memory of the
/// value tells them apart, while that of the visit before is held.
pub(crate) fn running_statistics<M: Module>(module: &M) -> HashSet<ParamId> {
    let mut held = Held::default();
    module.visit(&mut held);
    let mut moved = Moved {
        held: held.0.into_iter(),
        found: HashSet::new(),
    };
    module.visit(&mut moved);
    moved.found
}

/// What one visit has shown, in its order. A parameter without a value yet is no statistic.
#[derive(Default)]
struct Held(Vec<Option<Box<dyn Any>>>);

impl ModuleVisitor for Held {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let held = param.is_initialized().then(|| Box::new(param.clone()) as _);
        self.0.push(held);
    }
}

/// The parameters whose values are elsewhere in the next visit.
struct Moved {
    held: std::vec::IntoIter<Option<Box<dyn Any>>>,
    found: HashSet<ParamId>,
}

impl ModuleVisitor for Moved {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let held = self.held.next().flatten();
        let held = held.and_then(|held| held.downcast::<Param<Tensor<D>>>().ok());
        if held.is_some_and(|held| !std::ptr::eq::<Tensor<D>>(&**held, &**param)) {
            self.found.insert(param.id);
        }
    }
}
