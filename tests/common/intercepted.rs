//! An optimizer that calls a closure before each update.

use std::sync::Arc;

use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

type Before = dyn Fn(&[usize]) + Send + Sync;

#[derive(Clone)]
pub struct Intercepted<O> {
    inner: O,
    before: Arc<Before>,
}

/// Returns `inner`, which first calls `before` with the shape of each parameter that it updates.
pub fn intercepted<O: Optimizer>(
    inner: O,
    before: impl Fn(&[usize]) + Send + Sync + 'static,
) -> Intercepted<O> {
    let before = Arc::new(before);
    Intercepted { inner, before }
}

impl<O: Optimizer> Optimizer for Intercepted<O> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<O::State<D>>,
    ) -> (Tensor<D>, Option<O::State<D>>) {
        (self.before)(&tensor.dims());
        self.inner.step(learning_rate, tensor, gradient, state)
    }

    fn to_device<const D: usize>(state: O::State<D>, device: &Device) -> O::State<D> {
        O::to_device(state, device)
    }
}
