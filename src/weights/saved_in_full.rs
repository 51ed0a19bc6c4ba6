use burn::module::{ModuleMapper, Param};
use burn::tensor::Tensor;

use super::placeholder::Identity;
use super::restored::{Place, Value};
use super::views::Views;

/// Lets parameters that are computed with in another type be recorded as they are stored.
pub(super) struct SavedInFull<'a> {
    pub(super) views: &'a Views,
    pub(super) value: Value,
}

impl ModuleMapper for SavedInFull<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let copy = param.base();
        let view = self.views.find(param.id);
        let Some(view) = view.filter(|view| view.home.dtype != copy.dtype()) else {
            return param;
        };
        let stored = view.leaf(self.value, Place::Home).of_rank::<D>().inner();
        let identity = Identity::of(&copy);
        let (_, _, mapper) = param.clone().consume();
        param.save_mapper(move |value| {
            // Whoever trains or maps the copy saves what it has become.
            let is_copy = !value.is_autodiff() && Identity::of(&value) == identity;
            mapper.on_save(if is_copy { stored.clone() } else { value })
        })
    }
}
