//! Accumulation in the state. Burn has no such optimizer, so the reference is a fused training with given gradients.

use std::sync::{Arc, Mutex};

use crate::model::Model;
use crate::options::{Options, Stepped};
use crate::rows::Gradients;

use crate::common::*;

/// A fused training that accumulates in its state.
pub fn in_state(options: &Options, model: Model) -> Result<FusedOptimizer<Model>, FusedError> {
    match options.stepped {
        Stepped::AdamW | Stepped::AdamW8 | Stepped::AdamW4 => {
            FusedOptimizer::accumulating_in_state(model, options.adamw().build())
        }
        _ => FusedOptimizer::accumulating_in_state(model, options.sgd().build()),
    }
}

/// A hook that replaces the gradients by given ones.
#[derive(Clone, Default)]
pub struct Given(Arc<Mutex<(Gradients, Vec<ParamId>, bool)>>);

impl Given {
    pub fn give(&self, gradients: Gradients, last: bool) {
        let mut given = self.0.lock().unwrap();
        (given.0, given.2) = (gradients, last);
    }
}

impl GradientHook for Given {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        let mut given = self.0.lock().unwrap();
        let (gradients, begun, last) = &mut *given;
        let (id, last) = (parameter.id, *last);
        let had_begun = begun.contains(&id);
        begun.retain(|other| !(last && *other == id));
        match gradients.remove(&id) {
            Some(row) => {
                if !last && !had_begun {
                    begun.push(id);
                }
                GradientFlow::Continue(row.reshape(gradient.shape()))
            }
            None if last && had_begun => GradientFlow::Continue(gradient.zeros_like()),
            None => GradientFlow::Veto,
        }
    }
}
