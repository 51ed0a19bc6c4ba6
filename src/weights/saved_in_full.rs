use burn::module::{ModuleMapper, Param};
use burn::tensor::Tensor;

use super::local_param::{ExportLocation, Value};
use super::local_params::LocalParams;

/// A mapper that makes each parameter whose compute type differs from its storage type save its stored value.
pub(super) struct SavedInFull<'a> {
    pub(super) local_params: &'a LocalParams,
    pub(super) value: Value,
}

impl ModuleMapper for SavedInFull<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let copy = param.base();
        let local_param = self.local_params.find(param.id);
        let Some(local_param) =
            local_param.filter(|local_param| local_param.master.dtype != copy.dtype())
        else {
            return param;
        };
        let stored = local_param
            .exported(self.value, ExportLocation::Stored)
            .of_dims::<D>()
            .inner();
        let (_, _, mapper) = param.clone().consume();
        param.save_mapper(move |value| {
            // A copy that was trained or mapped saves its own value.
            let is_copy = !value.is_autodiff() && is_cast(&value, &stored);
            mapper.on_save(if is_copy { stored.clone() } else { value })
        })
    }
}

/// Returns `true` if `value` is `stored`, cast to another type. NaN equals NaN here.
fn is_cast<const D: usize>(value: &Tensor<D>, stored: &Tensor<D>) -> bool {
    value.shape() == stored.shape() && {
        let cast = stored
            .clone()
            .to_device(&value.device())
            .cast(value.dtype());
        let are_nan = value.clone().is_nan().bool_and(cast.clone().is_nan());
        let are_equal = value.clone().equal(cast).bool_or(are_nan);
        are_equal.all().into_scalar::<bool>()
    }
}
