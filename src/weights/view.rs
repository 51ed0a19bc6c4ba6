use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};
use parking_lot::Mutex;

use super::home::Home;
use super::stage::{Expecting, Stage};
use super::terms::Terms;
use crate::error::FusedError;
use crate::layout::Holding;
use crate::pass::{Graph, Session};
use crate::tap::lift;

/// Which of its values a restored parameter has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'a> {
    /// That which rests, on the device of this rank if there are several.
    Rests,
    /// The same, or what says that it is gone.
    RestsOrGone,
    /// The same, where it rests.
    AtHome,
    /// The same on the host, which is this device.
    OnHost(&'a Device),
    /// That with which the model computes, unless it comes over for every use.
    Computes,
    /// The average of that which rests, on this device or where it rests.
    Averaged(Option<&'a Device>),
    /// The same as the model computes with it, unless it comes over for every use.
    AveragedComputes,
}

/// What one rank has of a parameter of rank `D`.
#[derive(Debug)]
pub(crate) struct View<const D: usize> {
    pub(super) home: Arc<Home<D>>,
    pub(super) session: Arc<Session>,
    pub(super) terms: Terms,
    pub(super) state: Mutex<State<D>>,
}

#[derive(Debug)]
pub(super) struct State<const D: usize> {
    pub(super) stage: Stage<D>,
    copy: Option<Copy<D>>,
    /// Whether the device has computed a gradient for it.
    pub(super) proven: bool,
}

/// What the model computes with, if that is not the value at home.
#[derive(Debug)]
struct Copy<const D: usize> {
    value: Tensor<D>,
    /// Of the value at home.
    version: usize,
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
        Self {
            home,
            session,
            terms,
            state: Mutex::new(State {
                stage: Stage::Unread,
                copy: None,
                proven: false,
            }),
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.terms.path
    }

    /// A value of it as an autodiff constant.
    pub(super) fn constant_of(&self, value: Tensor<D>) -> Tensor<D> {
        lift(value, self.home.strategy)
    }

    /// A value of it as an ordinary trainable parameter holds it.
    pub(super) fn leaf(&self, which: Which<'_>) -> Tensor<D> {
        let value = match which {
            Which::Rests => self.at_rest().unwrap_or_else(|reason| panic!("{reason}")),
            // Whatever has ended the pass is on its way: who reads a value that is gone is told.
            Which::RestsOrGone => {
                let value = self.at_rest();
                value.unwrap_or_else(|_| self.home.gone(&self.terms.likeness.device))
            }
            Which::AtHome => self.home.value(),
            Which::OnHost(host) => {
                let value = self.home_on(host);
                value.unwrap_or_else(|error| panic!("{error}"))
            }
            Which::Computes if self.terms.comes_over() => self.home.value(),
            Which::Computes => self.plain(Keeps::Nothing),
            Which::Averaged(None) => self.home.averaged(),
            Which::Averaged(Some(device)) => self.averaged_on(device, self.home.dtype()),
            Which::AveragedComputes if self.terms.comes_over() => self.home.averaged(),
            Which::AveragedComputes => {
                let likeness = &self.terms.likeness;
                self.averaged_on(&likeness.device, likeness.dtype)
            }
        };
        lift(value, self.home.strategy).require_grad()
    }

    /// The value as it rests, on the device of this rank or on the host. Where it can't be had, a copy of it that is
    /// here.
    fn at_rest(&self) -> Result<Tensor<D>, String> {
        let home = &self.home;
        let device = match home.site.is_host {
            true => &home.site.device,
            false => &self.terms.likeness.device,
        };
        let state = self.state.lock();
        let copy = state
            .copy
            .as_ref()
            .filter(|copy| copy.value.dtype() == home.dtype() && copy.value.device() == *device);
        if let Some(copy) = copy
            && copy.version == home.version()
        {
            return Ok(copy.value.clone());
        }
        let value = match home.find() {
            Some(_) => self.home_on(device).map_err(|error| error.to_string()),
            None => Err(home.is_gone()),
        };
        value.or_else(|reason| copy.map(|copy| copy.value.clone()).ok_or(reason))
    }

    /// The average on this device, in this type.
    fn averaged_on(&self, device: &Device, dtype: DType) -> Tensor<D> {
        let average = self.home.averaged();
        let carried = (self.terms.layout).carried(self.path(), average, device, dtype);
        carried.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The value as it rests, on another device.
    fn home_on(&self, device: &Device) -> Result<Tensor<D>, FusedError> {
        let (value, dtype) = (self.home.value(), self.home.dtype());
        self.terms.layout.carried(self.path(), value, device, dtype)
    }

    /// The value as the model computes with it.
    ///
    /// # Panics
    ///
    /// If it can't come over to the device.
    pub(super) fn here(&self, state: &mut State<D>, keeps: Keeps) -> Tensor<D> {
        let holding = self.terms.holding();
        if holding == Holding::Shared {
            return self.home.value();
        }
        let version = self.home.version();
        let copy = state.copy.take();
        let copy = copy.filter(|copy| copy.version == version);
        let value = match copy {
            Some(copy) => copy.value,
            None => {
                let value = self.come_over();
                value.unwrap_or_else(|error| panic!("{error}"))
            }
        };
        let stays = match holding {
            Holding::Shared | Holding::Gathered => false,
            Holding::Kept => true,
            Holding::ForRead => keeps == Keeps::ForRun,
        };
        state.copy = stays.then(|| Copy {
            value: value.clone(),
            version,
        });
        value
    }

    fn come_over(&self) -> Result<Tensor<D>, FusedError> {
        let value = self.home.value();
        let (device, dtype) = (&self.terms.likeness.device, self.terms.likeness.dtype);
        self.terms.layout.carried(self.path(), value, device, dtype)
    }

    /// Brings a copy before it is read.
    pub(super) fn fetch(&self) {
        let mut state = self.state.lock();
        if self.terms.holding() == Holding::Shared
            || self.has_copy(&state)
            || self.home.find().is_none()
        {
            return;
        }
        let version = self.home.version();
        // If it fails, the read that needs it says so.
        if let Ok(value) = self.come_over() {
            state.copy = Some(Copy { value, version });
        }
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

    /// Lets a rank that has kept a copy have that of after an update. Where the home's device may be lost, the one before
    /// stays until it has come.
    pub(super) fn renew_copy(&self) -> Result<(), FusedError> {
        let mut state = self.state.lock();
        let is_outdated = state.copy.is_some() && !self.has_copy(&state);
        if self.terms.holding() != Holding::Kept || !is_outdated || self.home.find().is_none() {
            return Ok(());
        }
        if self.home.site.is_host {
            state.copy = None;
        }
        let version = self.home.version();
        let value = self.come_over()?;
        state.copy = Some(Copy { value, version });
        Ok(())
    }

    /// The pass is over: has what the owner has now, if this rank keeps it.
    pub(super) fn refresh_copy(&self) {
        // Where it can't be had, what was there before stays, or who reads it is told why.
        let taken = match self.terms.holding() {
            Holding::Kept if !self.home.site.is_host => {
                self.fetch();
                Ok(())
            }
            _ => self.renew_copy(),
        };
        if let Err(error) = taken {
            log::debug!("{error}");
        }
    }

    /// Shows what the model computes with, if that is a copy.
    pub(super) fn copy<'a>(&self, state: &'a State<D>) -> Option<&'a Tensor<D>> {
        state.copy.as_ref().map(|copy| &copy.value)
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
