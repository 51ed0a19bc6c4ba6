use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::TensorData;
use parking_lot::Mutex;

use crate::random::Stream;

/// What two passes of a step share: the first measures the gradients, and the second uses them.
#[derive(Debug)]
pub(crate) struct Rehearsal {
    random: Stream,
    /// The loss of the first pass, where the closure returns it.
    loss: Mutex<Option<Vec<f64>>>,
    /// Whether both passes give the same bits.
    exact: bool,
    /// Whether a gradient was used.
    used: AtomicBool,
}

impl Rehearsal {
    /// Of passes with the random numbers of `random`, which give the same bits, if `exact`, or the same to a
    /// thousandth.
    pub(crate) fn new(random: Stream, exact: bool) -> Self {
        Self {
            random,
            loss: Mutex::default(),
            exact,
            used: AtomicBool::new(false),
        }
    }

    /// A pass begins.
    pub(crate) fn start(&self) {
        self.random.start();
    }

    /// Whether the loss is that of the first pass, if this is not the first.
    pub(crate) fn agrees(&self, loss: &TensorData) -> bool {
        let loss: Vec<f64> = loss.iter::<f64>().collect();
        let mut first = self.loss.lock();
        let Some(first) = &*first else {
            *first = Some(loss);
            return true;
        };
        let near = |(a, b): (&f64, &f64)| !self.exact && (a - b).abs() <= 1e-3 * a.abs();
        let equal = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || near((a, b));
        first.iter().zip(&loss).all(equal)
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether anybody may have drawn since the pass began, on whichever thread. From here on the numbers
    /// are others.
    pub(crate) fn draws(&self) -> bool {
        !self.exact || self.random.is_touched()
    }

    /// A gradient is used: from here on the step can't begin anew.
    pub(crate) fn use_gradient(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }
}
