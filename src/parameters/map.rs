use std::collections::HashMap;

use backburn_base::{AnyParam, AnyTensor};
use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, FloatDType, Shape, Tensor};

/// Maps the values of the parameters for which `which` returns `true` with `change`, one after the other. `change` is
/// the only owner of each value.
pub(crate) fn map_params<M: Module>(
    module: M,
    which: impl FnMut(&dyn AnyParam) -> bool,
    change: impl FnMut(ParamId, AnyTensor) -> AnyTensor,
) -> M {
    module.map(&mut MapParams { which, change })
}

struct MapParams<W, C> {
    which: W,
    change: C,
}

impl<W, C> ModuleMapper for MapParams<W, C>
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

/// Takes the values of the parameters for which `which` returns `true` out of `module`. One element replaces each, on
/// the device that `device_for` returns for the device of the value.
pub(crate) fn take_values<M: Module>(
    module: M,
    which: impl Fn(ParamId) -> bool,
    device_for: impl Fn(Device) -> Device,
) -> (M, HashMap<ParamId, AnyTensor>) {
    let mut taken = HashMap::new();
    let take = |id, value: AnyTensor| {
        // In a type that every device supports.
        let one = Shape::from(vec![1_usize; value.shape().num_dims()]);
        let device = device_for(value.device());
        let nothing = Dispatch::float_empty(one, device.as_dispatch(), FloatDType::F32);
        taken.insert(id, value);
        Tensor::<1>::from_dispatch(nothing).into()
    };
    (map_params(module, |param| which(param.id()), take), taken)
}
