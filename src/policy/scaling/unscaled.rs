use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;

/// Multiplies a loss by the loss scale, in code that runs the backward pass itself under loss scaling: the
/// `TrainStep::step` of a model trained by [`FusedLearner`](crate::train::FusedLearner), or a closure
/// given to [`FusedOptimizer::step_with_backward`](crate::FusedOptimizer::step_with_backward).
/// Everywhere else it returns `loss`: what a closure given to
/// [`FusedOptimizer::step`](crate::FusedOptimizer::step) returns is scaled afterwards.
///
/// ```ignore
/// TrainOutput::new(self, scale_loss(output.loss.clone()).backward(), output)
/// ```
#[cfg_attr(not(feature = "train"), allow(rustdoc::broken_intra_doc_links))]
pub fn scale_loss<const D: usize>(loss: Tensor<D>) -> Tensor<D> {
    let scale = EXPECTED.with_borrow(|expected| {
        let expected = expected.as_ref()?;
        expected.scaled.store(true, Ordering::Relaxed);
        Some(expected.scale)
    });
    match scale {
        Some(scale) => loss.mul_scalar(scale),
        None => loss,
    }
}

thread_local! {
    static EXPECTED: RefCell<Option<Expected>> = const { RefCell::new(None) };
}

struct Expected {
    scale: f64,
    scaled: Arc<AtomicBool>,
}

/// Waits, on this thread and until it is dropped, for a loss to be scaled.
#[derive(Debug)]
pub(crate) struct Unscaled {
    scaled: Arc<AtomicBool>,
}

impl Unscaled {
    pub(crate) fn expect(scale: f64) -> Self {
        let scaled = Arc::new(AtomicBool::new(false));
        let expected = Expected {
            scale,
            scaled: scaled.clone(),
        };
        EXPECTED.set(Some(expected));
        Self { scaled }
    }

    /// Set when a loss has been scaled.
    pub(crate) fn scaled(&self) -> Arc<AtomicBool> {
        self.scaled.clone()
    }
}

impl Drop for Unscaled {
    fn drop(&mut self) {
        EXPECTED.set(None);
    }
}
