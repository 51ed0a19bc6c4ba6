use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};

use super::any::{AnyParam, AnyTensor};

/// `module` with what `change` makes of the values of the parameters that `which` tells, one after the other. Nothing here
/// owns a value beside `change`.
pub(crate) fn exchange<M: Module>(
    module: M,
    which: impl FnMut(&dyn AnyParam) -> bool,
    change: impl FnMut(ParamId, AnyTensor) -> AnyTensor,
) -> M {
    module.map(&mut Exchange { which, change })
}

struct Exchange<W, C> {
    which: W,
    change: C,
}

impl<W, C> ModuleMapper for Exchange<W, C>
where
    W: FnMut(&dyn AnyParam) -> bool,
    C: FnMut(ParamId, AnyTensor) -> AnyTensor,
{
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !(self.which)(&param) {
            return param;
        }
        let id = param.id;
        param.map(|value| (self.change)(id, value.into()).of_rank())
    }
}

/// `module` without the values of the parameters that `which` tells, and these values. One element stays in the place of
/// each, on the device that `beside` gives for that of the value.
pub(crate) fn taken<M: Module>(
    module: M,
    which: impl Fn(ParamId) -> bool,
    beside: impl Fn(Device) -> Device,
) -> (M, HashMap<ParamId, AnyTensor>) {
    let mut take = Take {
        which,
        beside,
        taken: HashMap::new(),
    };
    (module.map(&mut take), take.taken)
}

struct Take<W, B> {
    which: W,
    beside: B,
    taken: HashMap<ParamId, AnyTensor>,
}

impl<W: Fn(ParamId) -> bool, B: Fn(Device) -> Device> ModuleMapper for Take<W, B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        if !(self.which)(id) {
            return param;
        }
        param.map(|value| {
            // In a type that every device has.
            let nothing = Tensor::empty([1; D], (&(self.beside)(value.device()), DType::F32));
            self.taken.insert(id, value.into());
            nothing
        })
    }
}
