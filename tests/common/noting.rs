//! A hook that records every complete gradient.

use std::sync::{Arc, Mutex};

use backburn::{GradientFlow, GradientHook, HookedParameter};
use burn::module::ParamId;
use burn::tensor::{Tensor, TensorData};

/// Records the arguments of its calls.
#[derive(Clone, Default)]
pub struct Noting(pub Arc<Mutex<Vec<Note>>>);

pub type Note = (String, ParamId, TensorData, TensorData);

impl GradientHook for Noting {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        let mut notes = self.0.lock().unwrap();
        let path = parameter.path.to_string();
        // Copied immediately: on wgpu the data would contain later in-place writes.
        let copy = |tensor: &Tensor<D>| {
            let data = tensor.to_data();
            TensorData::new(data.iter::<f32>().collect::<Vec<_>>(), data.shape())
        };
        notes.push((path, parameter.id, copy(parameter.value), copy(&gradient)));
        GradientFlow::Continue(gradient)
    }
}
