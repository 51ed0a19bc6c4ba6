//! Who has a copy of the value at home, and when. That is by what the rank [holds](Holding) of the parameter:
//!
//! | | a copy comes | and goes |
//! |---|---|---|
//! | [`Shared`](Holding::Shared) | never: home is where the model computes | |
//! | [`Kept`](Holding::Kept) | with the first read, and anew after every update | when the next one has come; from the host, before |
//! | [`ForRead`](Holding::ForRead) | with a read; that of a block from the host, before it | with the graph that has read it, or with the run of the block |
//! | [`Gathered`](Holding::Gathered) | with a read | with the graph that has read it |
//!
//! A parameter on the host that is read outside of a block is in the graph of the whole pass anyway, so its copy [stays](View::stay)
//! from then on.

use std::sync::Arc;

use super::stage::GradientState;
use super::view::{HomeCopy, State, View};
use crate::error::FusedError;
use crate::layout::Holding;
use crate::parameters::AnyTensor;
use crate::pass::Graph;

/// What becomes of a copy that comes for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// It goes with the reader, a graph that holds it.
    Nothing,
    /// It stays for further reads of the run of a block.
    ForRun,
}

impl View {
    /// The value, as the model computes with it.
    fn come_over(&self) -> Result<AnyTensor, FusedError> {
        self.carried(self.home.value(), &self.device, self.dtype)
    }

    /// The value as the model computes with it, or the copy of an earlier read.
    ///
    /// # Panics
    ///
    /// If it can't come over to the device.
    pub(super) fn here(&self, state: &mut State, keeps: Keeps) -> AnyTensor {
        if self.given == Holding::Shared {
            return self.home.value();
        }
        let holding = self.holding();
        let version = self.home.version();
        let copy = state.copy.take();
        let copy = copy.filter(|copy| copy.version == version);
        let value = match copy {
            Some(copy) => copy.value,
            None => self.come_over().unwrap_or_else(|error| panic!("{error}")),
        };
        let stays = match holding {
            Holding::Shared | Holding::Gathered => false,
            Holding::Kept => true,
            Holding::ForRead => keeps == Keeps::ForRun,
        };
        if stays {
            state.copy = Some(HomeCopy::of(value.clone(), version));
        }
        value
    }

    /// Has a copy of what is at home now. Where the home's device may be lost, the one before stays until it has come.
    pub(super) fn bring_copy(&self) -> Result<(), FusedError> {
        let mut state = self.state.lock();
        if self.holding() == Holding::Shared || self.has_copy(&state) || self.home.find().is_none()
        {
            return Ok(());
        }
        if self.home.ground.site.is_host {
            state.copy = None;
        }
        let version = self.home.version();
        let value = self.come_over()?;
        state.copy = Some(HomeCopy::of(value, version));
        Ok(())
    }

    fn has_copy(&self, state: &State) -> bool {
        let copy = state.copy.as_ref();
        copy.is_some_and(|copy| copy.version == self.home.version())
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
    pub(super) fn fetch(&self) {
        let _ = self.bring_copy();
    }

    /// Drops what came for a read.
    pub(super) fn let_go(&self) {
        // Whoever is at it takes the copy away itself.
        if self.holding() != Holding::Kept
            && let Some(mut state) = self.state.try_lock()
        {
            state.copy = None;
        }
    }

    /// Lets a rank that has kept a copy have that of after an update.
    pub(super) fn renew_copy(&self) -> Result<(), FusedError> {
        let keeps = self.holding() == Holding::Kept && self.state.lock().copy.is_some();
        if keeps { self.bring_copy() } else { Ok(()) }
    }

    /// The pass is over: has what the owner has now, if this rank keeps it.
    pub(super) fn refresh_copy(&self) {
        let keeps_all = self.holding() == Holding::Kept && !self.home.ground.site.is_host;
        let brought = match keeps_all {
            true => self.bring_copy(),
            false => self.renew_copy(),
        };
        // Where it can't be had, what was there before stays, or who reads it is told why.
        if let Err(error) = brought {
            log::debug!("{error}");
        }
    }

    /// Has a value that waits on the host brought by the thread that brings them ahead, so that all come from one
    /// stream and its memory.
    pub(super) fn have_brought(self: &Arc<Self>, graph: Option<&Arc<Graph>>) {
        if let Some(placement) = &self.layout.placement
            && self.comes_from_host()
            && self.lacks_copy(graph)
        {
            let view = self.clone();
            placement.prefetch(move || view.fetch());
            placement.transfers.to_device.wait_idle();
        }
    }

    /// The parameter is read outside of a block: what the device computes with stays in the graph.
    pub(super) fn stay(&self) {
        if !self.comes_from_host() {
            return;
        }
        self.keep_copy();
        if !self.comes_over() {
            log::warn!(
                "parameter `{}` is read outside of a block under gradient checkpointing, so its weights stay on \
                 the device; only the host keeps its optimizer state",
                self.home.path
            );
        }
    }
}
