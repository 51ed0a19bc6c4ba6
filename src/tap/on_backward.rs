use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

use super::{GradientSink, PassedGradients, tap};

/// Calls `work` when the backward pass of `root` has begun and Burn has locked the graph.
pub(crate) fn on_backward(root: Tensor<1>, work: impl Fn() + Send + Sync + 'static) -> Tensor<1> {
    let anchor = root.clone().into_dispatch();
    tap(root, anchor, Arc::new(BackwardRoot(work)))
}

/// The gradient sink at the root of a graph, whose backward step runs first.
struct BackwardRoot<F>(F);

impl<F: Fn() + Send + Sync> GradientSink for BackwardRoot<F> {
    fn receive(&self, gradient: DispatchTensor) -> PassedGradients {
        (self.0)();
        PassedGradients {
            value: Some(gradient),
            ..PassedGradients::default()
        }
    }
}
