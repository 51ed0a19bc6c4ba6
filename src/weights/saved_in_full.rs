use burn::module::{ModuleMapper, Param};
use burn::tensor::Tensor;

use super::export::{ExportLocation, Value};
use super::local_params::LocalParams;
use super::placeholder::Identity;

/// A reparameterizer that records parameters in their storage type, although they are computed with in another.
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
            .leaf(self.value, ExportLocation::Stored)
            .of_rank::<D>()
            .inner();
        let identity = Identity::of(&copy);
        let (_, _, mapper) = param.clone().consume();
        param.save_mapper(move |value| {
            // A copy that was trained or mapped saves its own value.
            let is_copy = !value.is_autodiff() && Identity::of(&value) == identity;
            mapper.on_save(if is_copy { stored.clone() } else { value })
        })
    }
}
