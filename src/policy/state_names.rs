use std::collections::BTreeSet;

use burn::module::ParamId;
use burn::tensor::{Device, Tensor};

use super::named_param::step_one;
use super::states::written;
use super::update::Update;
use crate::caught::catch;
use crate::optimizer_record::read;
use crate::parameters::{AnyTensor, with_rank};

impl Update {
    /// Returns the names of the tensors in the state that the optimizer keeps for a parameter of this path and rank, as
    /// in its records. Burn's optimizers don't report these names, so this steps a single element on the default
    /// device.
    pub(crate) fn state_names(&self, id: ParamId, path: &str, rank: usize) -> Vec<String> {
        let one = || with_rank!(rank, D => AnyTensor::from(Tensor::<D>::ones([1; D], &Device::default())));
        let stepped = catch(|| {
            let mut optimizer = self.fresh();
            step_one(&mut optimizer, 0.0.into(), path, id, one(), one());
            read(written(optimizer.to_record()))
        });
        let Ok(Ok(states)) = stepped else {
            return Vec::new();
        };
        let state = states.get(&id.val());
        let names = state.into_iter().flat_map(|state| {
            let tensors = state.tensors.iter();
            tensors.map(|tensor| state.name_in_state(&tensor.name).to_string())
        });
        names.collect::<BTreeSet<_>>().into_iter().collect()
    }
}
