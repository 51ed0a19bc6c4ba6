use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::module::ParamId;
use burn::tensor::{Device, Tensor};
use parking_lot::Mutex;

use super::home::Home;
use super::placeholder::Likeness;
use super::stage::{Expecting, Stage};
use crate::error::FusedError;
use crate::layout::{Holding, Layout};
use crate::pass::{Graph, Session};
use crate::replica::Hold;
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
}

/// What one rank has of a parameter of rank `D`.
#[derive(Debug)]
pub(crate) struct View<const D: usize> {
    pub(super) home: Arc<Home<D>>,
    pub(super) session: Arc<Session>,
    pub(super) layout: Arc<Layout>,
    /// The path of the frozen parameter that this one adapts, if that waits on the host.
    pub(super) waiting_base: Option<Arc<str>>,
    /// Of the value that the model computes with.
    likeness: Likeness,
    holding: Holding,
    /// Whether a copy that would come for a read stays from now on.
    stays: AtomicBool,
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
    /// It stays for further reads of the run.
    Copy,
}

impl<const D: usize> View<D> {
    /// That of a rank which computes with it on `device`.
    pub(super) fn new(
        home: Arc<Home<D>>,
        session: Arc<Session>,
        layout: Arc<Layout>,
        device: &Device,
    ) -> Self {
        let device = layout.computes_on(device);
        let holding = layout.holding(home.id, &home.site, home.dtype(), &device);
        let mut likeness = home.likeness.on(&device);
        likeness.dtype = layout.compute_dtype(home.dtype());
        if home.site.is_host
            && let Some(placement) = layout.placement()
        {
            placement.houses(likeness.bytes());
        }
        if layout.owner(home.id) == layout.rank() {
            let owner = home.session.set(session.clone());
            owner.expect("a parameter has one owner");
        }
        Self {
            home,
            session,
            layout,
            waiting_base: None,
            likeness,
            holding,
            stays: AtomicBool::new(false),
            state: Mutex::new(State {
                stage: Stage::Unread,
                copy: None,
                proven: false,
            }),
        }
    }

    pub(super) fn id(&self) -> ParamId {
        self.home.id
    }

    pub(super) fn path(&self) -> &str {
        &self.home.path
    }

    pub(super) fn owns(&self) -> bool {
        self.layout.owner(self.id()) == self.layout.rank()
    }

    /// What a placeholder of it is like.
    pub(super) fn likeness(&self) -> &Likeness {
        &self.likeness
    }

    /// What this rank has of it, by now.
    pub(super) fn holding(&self) -> Holding {
        match self.holding {
            Holding::ForRead if self.stays.load(Ordering::Relaxed) => Holding::Kept,
            holding => holding,
        }
    }

    /// A copy of it that would come for a read stays on the device from now on, if this rank keeps such weights.
    pub(super) fn keep_copy(&self) {
        self.stays.store(self.replicates(), Ordering::Relaxed);
    }

    /// Whether the rank may keep it between two passes.
    fn replicates(&self) -> bool {
        let group = self.layout.member().map(|member| &member.group);
        self.owns() || group.is_none_or(|group| group.replicates_weights())
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
                value.unwrap_or_else(|_| self.home.gone(&self.likeness.device))
            }
            Which::AtHome => self.home.value(),
            Which::OnHost(host) => {
                let value = self.home_on(host);
                value.unwrap_or_else(|error| panic!("{error}"))
            }
            Which::Computes if self.holding() == Holding::ForRead => self.home.value(),
            Which::Computes => self.plain(),
        };
        lift(value, self.home.strategy).require_grad()
    }

    /// The value as it rests, on the device of this rank or on the host. Where it can't be had, a copy of it that is
    /// here.
    fn at_rest(&self) -> Result<Tensor<D>, String> {
        let home = &self.home;
        let device = match home.site.is_host {
            true => &home.site.device,
            false => &self.likeness.device,
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

    /// The value as it rests, on another device.
    fn home_on(&self, device: &Device) -> Result<Tensor<D>, FusedError> {
        let (value, dtype) = (self.home.value(), self.home.dtype());
        self.layout.carried(self.path(), value, device, dtype)
    }

    /// The value as the model computes with it.
    ///
    /// # Panics
    ///
    /// If it can't come over to the device.
    pub(super) fn here(&self, state: &mut State<D>, keeps: Keeps) -> Tensor<D> {
        let holding = self.holding();
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
            Holding::ForRead => keeps == Keeps::Copy,
        };
        state.copy = stays.then(|| Copy {
            value: value.clone(),
            version,
        });
        value
    }

    fn come_over(&self) -> Result<Tensor<D>, FusedError> {
        let value = self.home.value();
        let (device, dtype) = (&self.likeness.device, self.likeness.dtype);
        self.layout.carried(self.path(), value, device, dtype)
    }

    /// Brings a copy before it is read.
    pub(super) fn fetch(&self) {
        let mut state = self.state.lock();
        if self.holding() == Holding::Shared || self.has_copy(&state) || self.home.find().is_none()
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
        if self.holding() != Holding::Kept
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
        if self.holding() != Holding::Kept || !is_outdated || self.home.find().is_none() {
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

    /// The pass is over: takes what the owner has now, if this rank keeps it.
    pub(super) fn take_over(&self) {
        // Where it can't be had, what was there before stays, or who reads it is told why.
        let taken = match self.holding() {
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

    /// Bytes of weights that the rank holds between two passes.
    pub(super) fn bytes_at_rest(&self) -> usize {
        let is_here = self.owns() && !self.home.site.is_host;
        let at_home = if is_here {
            self.home.likeness.bytes()
        } else {
            0
        };
        let copy = match self.holding() {
            Holding::Kept => self.likeness.bytes(),
            // Counted by rank, as if every rank had a device.
            Holding::Shared if !is_here && self.replicates() => self.likeness.bytes(),
            _ => 0,
        };
        at_home + copy
    }

    /// Counts the value as held by this rank, if it is gathered from its owner for every read.
    pub(super) fn count_gathered(&self) -> Option<Hold> {
        let member = self.layout.among_others()?;
        let hold = || member.group.hold(member.rank, self.likeness.bytes());
        (!self.replicates()).then(hold)
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
