//! Compute copies of parameters: when they are fetched and dropped, by [`Residency`].
//!
//! | residency | a copy is fetched | and dropped |
//! |---|---|---|
//! | [`Aliased`](Residency::Aliased) | never: the master's value is used | |
//! | [`Cached`](Residency::Cached) | with the first read, and after every update | after the next copy has arrived; from the host, before the next copy is fetched |
//! | [`OnDemand`](Residency::OnDemand) | with a read; from the host and for a block, before the block | with the graph that has read it, or with the run of the block |
//! | [`Gathered`](Residency::Gathered) | with a read | with the graph that has read it |
//!
//! If a parameter on the host is read outside of a recomputed block, the graph of the whole pass holds its copy. The copy is
//! therefore [pinned](LocalParam::pin).

use std::sync::Arc;

use backburn_base::AnyTensor;

use super::gradient_state::GradientState;
use super::local_param::{ComputeCopy, LocalParam, State};
use crate::error::FusedError;
use crate::pass::Graph;
use crate::placement::Residency;

/// The lifetime of a copy that is fetched for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyLifetime {
    /// Dropped with the graph that has read it.
    Graph,
    /// Kept for further reads in the same run of a block.
    BlockRun,
}

impl LocalParam {
    /// Fetches the value to the compute device, in the compute type.
    fn fetch_value(&self) -> Result<AnyTensor, FusedError> {
        self.transfer(self.master.value(), &self.device, self.dtype)
    }

    /// Returns the value in the compute type, or the copy of an earlier read.
    ///
    /// # Panics
    ///
    /// Panics if the value can't be fetched to the device.
    pub(super) fn resident_value(
        &self,
        copy: &mut Option<Box<ComputeCopy>>,
        lifetime: CopyLifetime,
    ) -> AnyTensor {
        if self.assigned == Residency::Aliased {
            return self.master.value();
        }
        let residency = self.residency();
        let version = self.master.version();
        let current = copy.take().filter(|copy| copy.version == version);
        let value = match current {
            Some(copy) => copy.value,
            None => self.fetch_value().unwrap_or_else(|error| panic!("{error}")),
        };
        let keeps_copy = match residency {
            Residency::Aliased | Residency::Gathered => false,
            Residency::Cached => true,
            Residency::OnDemand => lifetime == CopyLifetime::BlockRun,
        };
        if keeps_copy {
            let value = value.clone();
            *copy = Some(Box::new(ComputeCopy { value, version }));
        }
        value
    }

    /// Fetches a copy of the master's current value. If the master's device may be lost, the old copy is kept until
    /// the new one has arrived. If a prefetch fails, the read that needs the copy reports the error.
    pub(super) fn fetch_copy(&self) -> Result<(), FusedError> {
        let mut state = self.state.lock();
        if self.has_copy(&state) || self.master.find().is_none() {
            return Ok(());
        }
        if self.is_offloaded {
            state.copy = None;
        }
        let version = self.master.version();
        let value = self.fetch_value()?;
        state.copy = Some(Box::new(ComputeCopy { value, version }));
        Ok(())
    }

    fn has_copy(&self, state: &State) -> bool {
        let copy = state.copy.as_ref();
        copy.is_some_and(|copy| copy.version == self.master.version())
    }

    /// Returns `true` if a read in this graph finds neither a copy nor the tap of an earlier read.
    pub(super) fn lacks_copy(&self, graph: Option<&Arc<Graph>>) -> bool {
        let state = self.state.lock();
        let is_tapped = match (&state.gradient, graph) {
            (GradientState::Pending(expecting), Some(graph)) => {
                let tapped = expecting.tapped.as_ref();
                tapped.is_some_and(|(read_in, _)| Arc::ptr_eq(read_in, graph))
            }
            _ => false,
        };
        !self.has_copy(&state) && !is_tapped
    }

    /// Drops a copy that was fetched for a read.
    pub(super) fn drop_fetched(&self) {
        // If another thread holds the lock, it uses or replaces the copy.
        if self.residency() != Residency::Cached
            && let Some(mut state) = self.state.try_lock()
        {
            state.copy = None;
        }
    }

    /// Replaces a cached copy after an update.
    pub(super) fn update_cached_copy(&self) -> Result<(), FusedError> {
        let has_cached_copy =
            self.residency() == Residency::Cached && self.state.lock().copy.is_some();
        if has_cached_copy {
            self.fetch_copy()
        } else {
            Ok(())
        }
    }

    /// Replaces a cached copy at the end of the pass.
    pub(super) fn refresh_copy(&self) {
        // With a copy on every rank, a lost owner loses no weight.
        let survives_owner = self.residency() == Residency::Cached && !self.is_offloaded;
        let refreshed = match survives_owner {
            true => self.fetch_copy(),
            false => self.update_cached_copy(),
        };
        // If the fetch fails, the old copy remains, or the next read reports the error.
        if let Err(error) = refreshed {
            log::debug!("{error}");
        }
    }

    /// Fetches an offloaded value on the prefetch thread and waits for it. The copies of blocks thus come from one stream
    /// and its memory.
    pub(super) fn fetch_on_worker(self: &Arc<Self>, graph: Option<&Arc<Graph>>) {
        if let Some(engine) = &self.context.engine
            && self.is_fetched_from_host()
            && self.lacks_copy(graph)
        {
            let local_param = self.clone();
            engine.queue_fetch(move || drop(local_param.fetch_copy()));
            engine.transfers.to_device.wait_idle();
        }
    }

    /// Pins the copy of a parameter that is read outside of a block: the graph holds it anyway.
    pub(super) fn pin(&self) {
        if !self.is_fetched_from_host() {
            return;
        }
        self.pin_copy();
        if !self.is_on_demand() {
            log::warn!(
                "parameter `{}` is read outside of a recomputed block under gradient checkpointing, so its weights stay on \
                 the device. Its optimizer state is on the host",
                self.master.path
            );
        }
    }
}
