use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use super::home::Home;
use super::stage::{Expecting, Stage};
use super::terms::Terms;
use crate::error::FusedError;
use crate::layout::Holding;
use crate::lock::{Level, Leveled};
use crate::parameters::Part;
use crate::pass::{Graph, Session};
use crate::tap::lift;

/// What one rank has of a parameter of rank `D`.
#[derive(Debug)]
pub(crate) struct View<const D: usize> {
    pub(super) home: Arc<Home<D>>,
    pub(super) session: Arc<Session>,
    pub(super) terms: Terms,
    pub(super) state: Leveled<State<D>>,
}

#[derive(Debug)]
pub(super) struct State<const D: usize> {
    pub(super) stage: Stage<D>,
    pub(super) copy: Option<Box<Copy<D>>>,
    /// Whether the device has computed a gradient for it.
    pub(super) proven: bool,
}

/// What the model computes with, if that is not the value at home.
#[derive(Debug)]
pub(super) struct Copy<const D: usize> {
    pub(super) value: Tensor<D>,
    /// Of the value at home.
    pub(super) version: usize,
}

impl<const D: usize> Copy<D> {
    fn of(value: Tensor<D>, version: usize) -> Box<Self> {
        Box::new(Self { value, version })
    }
}

/// What becomes of a copy that comes for a read.
#[derive(Clone, std::marker::Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// It goes with the reader, a graph that holds it.
    Nothing,
    /// It stays for further reads of the run of a block.
    ForRun,
}

impl<const D: usize> View<D> {
    /// That of a rank which has it on these terms.
    pub(super) fn new(home: Arc<Home<D>>, session: Arc<Session>, terms: Terms) -> Self {
        if terms.owns() {
            let owner = home.session.set(session.clone());
            owner.expect("a parameter has one owner");
        }
        let state = State {
            stage: Stage::Unread,
            copy: None,
            proven: false,
        };
        Self {
            home,
            session,
            terms,
            state: Leveled::new(Level::View, state),
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.terms.path
    }

    /// A value of it as an autodiff constant.
    pub(super) fn constant_of(&self, value: Tensor<D>) -> Tensor<D> {
        lift(value, self.home.strategy)
    }

    /// The value, or a part of it, as the model computes with it.
    fn come_over(&self, part: Option<&Part>) -> Result<Tensor<D>, FusedError> {
        let value = Part::or_whole(part, self.home.value());
        self.carried(value, &self.terms.device, self.terms.dtype)
    }

    pub(super) fn carried(
        &self,
        value: Tensor<D>,
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor<D>, FusedError> {
        self.terms.layout.carried(self.path(), value, device, dtype)
    }

    /// The value, or a part of it, as the model computes with it. A part comes over alone where the whole would not stay.
    ///
    /// # Panics
    ///
    /// If it can't come over to the device.
    pub(super) fn here(
        &self,
        state: &mut State<D>,
        keeps: Keeps,
        part: Option<&Part>,
    ) -> Tensor<D> {
        let holding = self.terms.holding();
        if holding == Holding::Shared {
            return Part::or_whole(part, self.home.value());
        }
        let version = self.home.version();
        let copy = state.copy.take();
        let copy = copy.filter(|copy| copy.version == version);
        let alone = part.filter(|_| copy.is_none() && holding != Holding::Kept);
        let value = match copy {
            Some(copy) => copy.value,
            None => self
                .come_over(alone)
                .unwrap_or_else(|error| panic!("{error}")),
        };
        if alone.is_some() {
            return value;
        }
        let stays = match holding {
            Holding::Shared | Holding::Gathered => false,
            Holding::Kept => true,
            Holding::ForRead => keeps == Keeps::ForRun,
        };
        if stays {
            state.copy = Some(Copy::of(value.clone(), version));
        }
        Part::or_whole(part, value)
    }

    /// Has a copy of what is at home now. Where the home's device may be lost, the one before stays until it has come.
    pub(super) fn bring_copy(&self) -> Result<(), FusedError> {
        let mut state = self.state.lock();
        if self.terms.holding() == Holding::Shared
            || self.has_copy(&state)
            || self.home.find().is_none()
        {
            return Ok(());
        }
        if self.home.site().is_host {
            state.copy = None;
        }
        let version = self.home.version();
        let value = self.come_over(None)?;
        state.copy = Some(Copy::of(value, version));
        Ok(())
    }

    fn has_copy(&self, state: &State<D>) -> bool {
        let copy = state.copy.as_ref();
        copy.is_some_and(|copy| copy.version == self.home.version())
    }

    /// Whether a read in this graph, if it is recorded, finds neither a copy nor the tap of a read before.
    pub(super) fn lacks_copy(&self, graph: Option<&Arc<Graph>>) -> bool {
        let state = self.state.lock();
        let is_tapped = match (&state.stage, graph) {
            (Stage::Expecting(expecting), Some(graph)) => expecting.is_tapped_in(graph),
            _ => false,
        };
        !self.has_copy(&state) && !is_tapped
    }

    /// Drops what came for a read.
    pub(super) fn let_go(&self) {
        // Whoever is at it takes the copy away itself.
        if self.terms.holding() != Holding::Kept
            && let Some(mut state) = self.state.try_lock()
        {
            state.copy = None;
        }
    }

    /// Lets a rank that has kept a copy have that of after an update.
    pub(super) fn renew_copy(&self) -> Result<(), FusedError> {
        let keeps = self.terms.holding() == Holding::Kept && self.state.lock().copy.is_some();
        if keeps { self.bring_copy() } else { Ok(()) }
    }

    /// The pass is over: has what the owner has now, if this rank keeps it.
    pub(super) fn refresh_copy(&self) {
        let keeps_all = self.terms.holding() == Holding::Kept && !self.home.site().is_host;
        let brought = match keeps_all {
            true => self.bring_copy(),
            false => self.renew_copy(),
        };
        // Where it can't be had, what was there before stays, or who reads it is told why.
        if let Err(error) = brought {
            log::debug!("{error}");
        }
    }

    /// What is still to come in this pass.
    ///
    /// # Panics
    ///
    /// If the gradient has come already.
    pub(super) fn expecting<'a>(&self, state: &'a mut State<D>) -> &'a mut Expecting<D> {
        if let Stage::Unread = state.stage {
            state.stage = Stage::Expecting(Box::<Expecting<D>>::default());
        }
        match &mut state.stage {
            Stage::Expecting(expecting) => expecting,
            _ => panic!(
                "parameter `{}` was read again after its gradient had arrived in this step: combine \
                 the losses and run one backward pass per step. To compute with the model after the \
                 backward pass (an accuracy, the norm of a weight) read `model.valid()`; to look at \
                 a gradient, which is released when it has been used, add a `GradientHook`",
                self.path()
            ),
        }
    }
}
