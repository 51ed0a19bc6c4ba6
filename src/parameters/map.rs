use std::collections::{HashMap, VecDeque};

use backburn_base::{AnyParam, AnyTensor, list};
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
        param.map(|value| (self.change)(id, value.into()).of_dims())
    }
}

/// Values of parameters, in the order of a module: frozen parameters with the same id may have different values.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValuesInOrder(pub(super) HashMap<ParamId, VecDeque<AnyTensor>>);

impl ValuesInOrder {
    /// Returns the values of the parameters of `module` for which `which` returns `true`.
    pub(crate) fn of<M: Module>(module: &M, which: impl Fn(ParamId) -> bool) -> Self {
        let mut values = Self::default();
        for parameter in list(module) {
            let id = parameter.param.id();
            if which(id) {
                values.add(id, parameter.param.value());
            }
        }
        values
    }

    fn add(&mut self, id: ParamId, value: AnyTensor) {
        self.0.entry(id).or_default().push_back(value);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &AnyTensor> {
        self.0.values().flatten()
    }

    /// Puts the result of `put` into each parameter of `module` with a value, which receives the previous value and that value.
    pub(crate) fn put_into<M: Module>(
        self,
        module: M,
        put: impl FnMut(AnyTensor, AnyTensor) -> AnyTensor,
    ) -> M {
        if self.0.is_empty() {
            return module;
        }
        let values = self.0;
        module.map(&mut PutValues { values, put })
    }
}

struct PutValues<P> {
    values: HashMap<ParamId, VecDeque<AnyTensor>>,
    put: P,
}

impl<P: FnMut(AnyTensor, AnyTensor) -> AnyTensor> ModuleMapper for PutValues<P> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let values = self.values.get_mut(&param.id);
        match values.and_then(VecDeque::pop_front) {
            Some(value) => param.map(|before| (self.put)(before.into(), value).of_dims()),
            None => param,
        }
    }
}

/// Takes the values of the parameters for which `which` returns `true` out of `module`. One element replaces each, on
/// the device that `device_for` returns for the device of the value.
pub(crate) fn take_values<M: Module>(
    module: M,
    which: impl Fn(ParamId) -> bool,
    device_for: impl Fn(Device) -> Device,
) -> (M, ValuesInOrder) {
    let mut taken = ValuesInOrder::default();
    let take = |id, value: AnyTensor| {
        // In a type that every device supports.
        let one = Shape::from(vec![1_usize; value.shape().num_dims()]);
        let device = device_for(value.device());
        let nothing = Dispatch::float_empty(one, device.as_dispatch(), FloatDType::F32);
        taken.add(id, value);
        Tensor::<1>::from_dispatch(nothing).into()
    };
    (map_params(module, |param| which(param.id()), take), taken)
}
