//! Training a model that is larger than its device.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;

use super::FusedOptimizer;
use crate::error::FusedError;
use crate::offload::{OffloadConfig, Placement};
use crate::pass::{Course, Foresight, Session};
use crate::slot::FetchAhead;

impl<M: Module> FusedOptimizer<M> {
    /// Lets parts of the training wait in host memory while the model computes on `device`: the optimizer state,
    /// the updates, or the weights of blocks, too ([`Offload`](crate::Offload)).
    ///
    /// A model that does not fit on the device is created and loaded on the host, `Device::flex().autodiff()`: a
    /// parameter goes over alone, if at all. Its frozen parameters, running statistics and constants all go over.
    ///
    /// ```
    /// # #[cfg(feature = "ndarray")] {
    /// use backburn::{FusedOptimizer, Offload, OffloadConfig};
    /// use burn::{nn::LinearConfig, optim::AdamWConfig, tensor::{Device, Tensor}};
    ///
    /// let device = Device::ndarray(); // a GPU, in earnest
    /// let model = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
    /// let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())
    ///     .with_offload(OffloadConfig::new(Offload::Updates), &device);
    ///
    /// let x = Tensor::<2>::ones([8, 64], &device.autodiff());
    /// fused.step(1e-3, |model| model.forward(x).mean());
    /// # }
    /// ```
    ///
    /// The result is that of the same optimizer without: to the bit where the device computes the update as the
    /// host does. Gradients that were [accumulated](Self::accumulate) wait on the host, too. [`model`](Self::model)
    /// is then in host memory, [`valid`](Self::valid) computes on the device.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_with_offload`](Self::try_with_offload) returns.
    #[must_use]
    pub fn with_offload(self, config: OffloadConfig, device: &Device) -> Self {
        self.try_with_offload(config, device)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`with_offload`](Self::with_offload).
    ///
    /// # Errors
    ///
    /// If the options contradict each other or the policies, the device is not there or is the host itself, this
    /// build has no backend for one of them, or the device can't compute in a float type that the model needs.
    pub fn try_with_offload(
        mut self,
        config: OffloadConfig,
        device: &Device,
    ) -> Result<Self, FusedError> {
        let placement = Placement::new(config, device)?;
        if placement.states_wait() && self.policies.in_state() {
            return Err(FusedError::Offload {
                reason: "a state that waits is a record, which does not hold a group of micro-batches that \
                         has begun: use `Offload::Updates`, or accumulate in a buffer, which waits in host \
                         memory, too"
                    .to_string(),
            });
        }
        self.place(placement)?;
        Ok(self)
    }

    /// What brings weights to the device before they are read, if any wait.
    pub(super) fn foresight(&self) -> Option<Arc<dyn Foresight>> {
        let placement = self.form.placement()?;
        placement.waiting_blocks()?;
        let course = self.course.clone().unwrap_or_default();
        let slots = self.form.slots().clone();
        Some(Arc::new(FetchAhead::new(slots, placement, course)))
    }

    /// Learns from a pass in which order the blocks run; from the first one, which of them stay on the device.
    pub(super) fn learn_course(&mut self, course: Course) {
        let Some(waiting) = self.session.placement().and_then(|p| p.waiting_blocks()) else {
            return;
        };
        if course.is_empty() {
            return;
        }
        if self.course.is_none() {
            self.form.slots().keep_copies(&course, waiting);
        }
        self.course = Some(course);
    }

    /// Brings everything to where `placement` says; nothing has changed if that can't be.
    pub(super) fn place(&mut self, placement: Placement) -> Result<(), FusedError> {
        let slots = self.form.slots().clone();
        let session = self.session.clone();
        let before = session.place(Some(Arc::new(placement)));
        let unplaced = Unplaced {
            session,
            before: Some(before),
        };
        self.try_change_model(|model| model)?;
        unplaced.forget();
        self.restore_policies();
        self.form.slots().copy_accumulated(&slots);
        Ok(())
    }
}

/// Puts everything back to where it was, when dropped.
struct Unplaced {
    session: Arc<Session>,
    /// Where it was; none if it stays where it is now.
    before: Option<Option<Arc<Placement>>>,
}

impl Unplaced {
    /// It stays where it is now.
    fn forget(mut self) {
        self.before = None;
    }
}

impl Drop for Unplaced {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            self.session.place(before);
        }
    }
}
