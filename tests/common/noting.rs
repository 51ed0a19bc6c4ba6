//! A hook that notes every finished gradient.

use std::sync::{Arc, Mutex};

use backburn::{GradientFlow, GradientHook, HookedParameter};
use burn::module::ParamId;
use burn::tensor::{Tensor, TensorData};

/// Notes what it is called with.
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
        // Copied at once: on wgpu the data show what is written in place later.
        let copy = |tensor: &Tensor<D>| {
            let data = tensor.to_data();
            TensorData::new(data.iter::<f32>().collect::<Vec<_>>(), data.shape())
        };
        notes.push((path, parameter.id, copy(parameter.value), copy(&gradient)));
        GradientFlow::Continue(gradient)
    }
}
