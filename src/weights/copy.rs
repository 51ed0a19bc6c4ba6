//! Who has a copy of the value at home, and when. That is by what the rank [holds](Residency) of the parameter:
//!
//! | | a copy comes | and goes |
//! |---|---|---|
//! | [`Shared`](Residency::Aliased) | never: home is where the model computes | |
//! | [`Kept`](Residency::Cached) | with the first read, and anew after every update | when the next one has come; from the host, before |
//! | [`ForRead`](Residency::OnDemand) | with a read; that of a block from the host, before it | with the graph that has read it, or with the run of the block |
//! | [`Gathered`](Residency::Gathered) | with a read | with the graph that has read it |
//!
//! A parameter on the host that is read outside of a block is in the graph of the whole pass anyway, so its copy [stays](LocalParam::pin)
//! from then on.

use std::sync::Arc;

use super::gradient_state::GradientState;
use super::local_param::{ComputeCopy, LocalParam, State};
use crate::error::FusedError;
use crate::parameters::AnyTensor;
use crate::pass::Graph;
use crate::placement::Residency;

/// What becomes of a copy that comes for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheUntil {
    /// It goes with the reader, a graph that holds it.
    GraphDropped,
    /// It stays for further reads of the run of a block.
    BlockEnd,
}

impl LocalParam {
    /// The value, as the model computes with it.
    fn fetch_value(&self) -> Result<AnyTensor, FusedError> {
        self.transfer(self.master.value(), &self.device, self.dtype)
    }

    /// The value as the model computes with it, or the copy of an earlier read.
    ///
    /// # Panics
    ///
    /// If it can't come over to the device.
    pub(super) fn resident_value(&self, state: &mut State, cache_until: CacheUntil) -> AnyTensor {
        if self.assigned == Residency::Aliased {
            return self.master.value();
        }
        let residency = self.residency();
        let version = self.master.version();
        let copy = state.copy.take();
        let copy = copy.filter(|copy| copy.version == version);
        let value = match copy {
            Some(copy) => copy.value,
            None => self.fetch_value().unwrap_or_else(|error| panic!("{error}")),
        };
        let is_pinned = match residency {
            Residency::Aliased | Residency::Gathered => false,
            Residency::Cached => true,
            Residency::OnDemand => cache_until == CacheUntil::BlockEnd,
        };
        if is_pinned {
            state.copy = Some(ComputeCopy::of(value.clone(), version));
        }
        value
    }

    /// Has a copy of what is at home now. Where the home's device may be lost, the one before stays until it has come.
    pub(super) fn fetch_copy(&self) -> Result<(), FusedError> {
        let mut state = self.state.lock();
        if self.residency() == Residency::Aliased
            || self.has_copy(&state)
            || self.master.find().is_none()
        {
            return Ok(());
        }
        if self.master.storage.location.is_host {
            state.copy = None;
        }
        let version = self.master.version();
        let value = self.fetch_value()?;
        state.copy = Some(ComputeCopy::of(value, version));
        Ok(())
    }

    fn has_copy(&self, state: &State) -> bool {
        let copy = state.copy.as_ref();
        copy.is_some_and(|copy| copy.version == self.master.version())
    }

    /// Whether a read in this graph, if it is recorded, finds neither a copy nor the tap of a read before.
    pub(super) fn lacks_copy(&self, graph: Option<&Arc<Graph>>) -> bool {
        let state = self.state.lock();
        let is_tapped = match (&state.stage, graph) {
            (GradientState::Accumulating(expecting), Some(graph)) => {
                let tapped = expecting.tapped.as_ref();
                tapped.is_some_and(|(read_in, _)| Arc::ptr_eq(read_in, graph))
            }
            _ => false,
        };
        !self.has_copy(&state) && !is_tapped
    }

    /// Brings a copy before it is read. If it fails, the read that needs it says so.
    pub(super) fn prefetch(&self) {
        let _ = self.fetch_copy();
    }

    /// Drops what came for a read.
    pub(super) fn drop_fetched(&self) {
        // Whoever is at it takes the copy away itself.
        if self.residency() != Residency::Cached
            && let Some(mut state) = self.state.try_lock()
        {
            state.copy = None;
        }
    }

    /// Lets a rank that has kept a copy have that of after an update.
    pub(super) fn update_cached_copy(&self) -> Result<(), FusedError> {
        let cache_until = self.residency() == Residency::Cached && self.state.lock().copy.is_some();
        if cache_until {
            self.fetch_copy()
        } else {
            Ok(())
        }
    }

    /// The pass is over: has what the owner has now, if this rank keeps it.
    pub(super) fn refresh_copy(&self) {
        let keeps_all =
            self.residency() == Residency::Cached && !self.master.storage.location.is_host;
        let brought = match keeps_all {
            true => self.fetch_copy(),
            false => self.update_cached_copy(),
        };
        // Where it can't be had, what was there before stays, or who reads it is told why.
        if let Err(error) = brought {
            log::debug!("{error}");
        }
    }

    /// Has a value that waits on the host brought by the thread that brings them ahead, so that all come from one
    /// stream and its memory.
    pub(super) fn request_prefetch(self: &Arc<Self>, graph: Option<&Arc<Graph>>) {
        if let Some(engine) = &self.context.engine
            && self.is_fetched_from_host()
            && self.lacks_copy(graph)
        {
            let local_param = self.clone();
            engine.prefetch(move || local_param.prefetch());
            engine.transfers.to_device.wait_idle();
        }
    }

    /// The parameter is read outside of a block: what the device computes with stays in the graph.
    pub(super) fn pin(&self) {
        if !self.is_fetched_from_host() {
            return;
        }
        self.pin_copy();
        if !self.is_fetched_on_read() {
            log::warn!(
                "parameter `{}` is read outside of a block under gradient checkpointing, so its weights stay on \
                 the device; only the host keeps its optimizer state",
                self.master.path
            );
        }
    }
}
