use std::any::Any;
use std::collections::HashMap;

use burn::backend::Autodiff;
use burn::backend::Backend;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::tensor::FloatTensor;
use parking_lot::Mutex;

/// Counts the parameter gradients that are alive at once during a backward pass.
///
/// A gradient is alive from the moment the first consumer of its parameter has contributed until
/// it is delivered. The count looks up every tap that has not fired yet, at every delivery, so it
/// takes time in the square of the number of parameters.
#[derive(Debug, Default)]
pub(crate) struct Census {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<NodeId, Box<dyn Any + Send>>,
    most: usize,
}

impl Census {
    /// Adds the output of a tap to those whose gradient is expected.
    pub(crate) fn watch<B: Backend>(&self, tapped: &FloatTensor<Autodiff<B>>) {
        let mut state = self.state.lock();
        state.waiting.insert(tapped.id(), Box::new(tapped.clone()));
    }

    /// Counts the gradients alive at the moment that of `delivered` leaves `gradients`.
    pub(crate) fn count<B: Backend>(&self, delivered: NodeId, gradients: &Gradients) {
        let mut state = self.state.lock();
        // Removed before the update: the watch must not be a second owner of the value.
        state.waiting.remove(&delivered);
        let waiting = state
            .waiting
            .values()
            .filter_map(|tapped| tapped.downcast_ref::<FloatTensor<Autodiff<B>>>())
            .filter(|tapped| gradients.get::<B>(tapped).is_some())
            .count();
        state.most = state.most.max(waiting + 1);
    }

    /// The largest count since the last call; forgets the taps that did not fire.
    pub(crate) fn take(&self) -> usize {
        std::mem::take(&mut *self.state.lock()).most
    }
}
