//! Where the value of a parameter rests between its uses, and how the device comes by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;

use super::Slot;
use super::parameter::{ParameterSlot, State};
use super::stage::{Outcome, Stage};
use crate::device::{caught, moved, sent};
use crate::error::FusedError;
use crate::offload::Placement;
use crate::pass::Graph;

/// Where a value rests, and is stepped.
#[derive(Debug)]
pub(super) enum Home {
    /// Where the model computes.
    Device,
    /// On the host: the device computes with a copy.
    Host(HostHome),
}

/// What becomes of the copy of a value that comes over, when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// It goes with the reader, a graph that holds it.
    Nothing,
    /// It stays for further reads of the run.
    Copy,
}

#[derive(Debug)]
pub(super) struct HostHome {
    placement: Arc<Placement>,
    /// Whether the device keeps the copy from one read to the next.
    keeps_copy: AtomicBool,
}

impl Home {
    /// The home of `value`, and the value there.
    pub(super) fn of<const D: usize>(
        placement: Option<Arc<Placement>>,
        value: Tensor<D>,
    ) -> (Self, Tensor<D>) {
        let Some(placement) = placement else {
            return (Self::Device, value);
        };
        if !placement.rests_on_host(value.shape().num_elements()) {
            let device = placement.device().clone().inner();
            return (Self::Device, sent(value, &device));
        }
        let value = moved(value, placement.host());
        let dtype = placement.compute_dtype(value.dtype());
        placement.houses(value.shape().num_elements() * dtype.size());
        let keeps_copy = AtomicBool::new(placement.keeps_copies());
        let home = HostHome {
            placement,
            keeps_copy,
        };
        (Self::Host(home), value)
    }
}

impl HostHome {
    pub(super) fn keep_copy(&self) {
        self.keeps_copy.store(true, Ordering::Relaxed);
    }

    pub(super) fn keeps_copy(&self) -> bool {
        self.keeps_copy.load(Ordering::Relaxed)
    }
}

impl<const D: usize> ParameterSlot<D> {
    /// Has a value that comes over brought by the thread that brings them ahead, so that all come from one stream
    /// and its memory.
    pub(super) fn have_brought(self: &Arc<Self>, graph: Option<&Arc<Graph>>) {
        if let Home::Host(home) = &self.home
            && !home.keeps_copy()
            && self.lacks_copy(graph)
        {
            let slot = self.clone();
            home.placement.send_ahead(move || slot.fetch());
            home.placement.wait_for_weights();
        }
    }

    /// Whether a read in this graph, if it is recorded, finds neither a copy nor the tap of a read before.
    fn lacks_copy(&self, graph: Option<&Arc<Graph>>) -> bool {
        let state = self.state.lock();
        let is_tapped = match (&state.stage, graph) {
            (Stage::Expecting(expecting), Some(graph)) => expecting.is_tapped_in(graph),
            _ => false,
        };
        state.copy.is_none() && !is_tapped
    }

    /// The value as the model computes with it.
    ///
    /// # Panics
    ///
    /// If it can't come over to the device.
    pub(super) fn here(&self, state: &mut State<D>, keeps: Keeps) -> Tensor<D> {
        let value = self.held(state);
        let Home::Host(home) = &self.home else {
            return value;
        };
        let copy = state.copy.take();
        let copy = copy.unwrap_or_else(|| {
            let copy = self.come_over(home, value);
            copy.unwrap_or_else(|error| panic!("{error}"))
        });
        if home.keeps_copy() || keeps == Keeps::Copy {
            state.copy = Some(copy.clone());
        }
        copy
    }

    /// Waits for an update that is under way, so that what is read does not depend on how far it is.
    pub(super) fn wait_for_update(&self) {
        let is_leaving = matches!(self.state.lock().stage, Stage::Complete(Outcome::Leaving));
        if let (true, Some(placement)) = (is_leaving, self.session.placement()) {
            placement.wait_for_updates();
        }
    }

    /// The parameter is read outside of a block: what the device computes with stays in the graph.
    pub(super) fn stay(&self) {
        if let Home::Host(home) = &self.home
            && !home.keeps_copy()
        {
            home.keep_copy();
            log::warn!(
                "parameter `{}` is read outside of a block under gradient checkpointing, so its weights stay on \
                 the device; only the host keeps its optimizer state",
                self.path
            );
        }
    }

    /// Where things are, if the value rests on the host.
    pub(super) fn offloaded(&self) -> Option<Arc<Placement>> {
        match &self.home {
            Home::Device => None,
            Home::Host(home) => Some(home.placement.clone()),
        }
    }

    /// A gradient where the value rests, in its float type.
    pub(super) fn bring_home(&self, gradient: Tensor<D>) -> Result<Tensor<D>, FusedError> {
        let Some(placement) = self.offloaded() else {
            return Ok(gradient);
        };
        let dtype = self.value().dtype();
        let arrived = caught(|| placement.home(gradient, dtype));
        let arrived = arrived.map_err(|reason| self.stranded(reason))?;
        // It is gone from the device before the update begins.
        placement.hand_over();
        Ok(arrived)
    }

    /// Lets the device compute with the value of after an update.
    pub(super) fn renew_copy(&self) -> Result<(), FusedError> {
        let Home::Host(home) = &self.home else {
            return Ok(());
        };
        if home.keeps_copy() {
            let mut state = self.state.lock();
            let copy = self.come_over(home, self.held(&state))?;
            state.copy = Some(copy);
        }
        Ok(())
    }

    pub(super) fn come_over(
        &self,
        home: &HostHome,
        value: Tensor<D>,
    ) -> Result<Tensor<D>, FusedError> {
        caught(|| home.placement.over(value)).map_err(|reason| self.stranded(reason))
    }

    fn stranded(&self, reason: String) -> FusedError {
        let path = self.path.clone();
        FusedError::Transfer { path, reason }
    }
}
