use std::sync::atomic::{AtomicUsize, Ordering};

/// Limit of the bytes in flight between a device and the storage of its parameters. A larger transfer runs alone.
#[derive(Debug)]
pub(crate) struct InFlightLimit {
    max: Option<usize>,
    /// Bytes of the largest transferred parameter.
    largest: AtomicUsize,
}

impl InFlightLimit {
    pub(crate) fn new(max: Option<usize>) -> Self {
        Self {
            max,
            largest: AtomicUsize::new(0),
        }
    }

    /// Registers a parameter of this size.
    pub(crate) fn add_parameter(&self, bytes: usize) {
        self.largest.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Returns the limit for gradients. By default one gradient is applied while the next is computed.
    pub(crate) fn gradients(&self) -> usize {
        let largest = self.largest.load(Ordering::Relaxed);
        self.max.unwrap_or(largest + largest / 4)
    }

    /// Returns the limit for offloaded activations of this size. By default the previous ones must have been transferred.
    pub(crate) fn activations(&self, bytes: usize) -> usize {
        self.max.unwrap_or(bytes + bytes / 4)
    }

    /// Returns the limit for prefetched weights. By default all weights of the next block are prefetched.
    pub(crate) fn prefetch(&self) -> usize {
        self.max.unwrap_or(usize::MAX)
    }
}
