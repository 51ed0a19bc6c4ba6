use std::sync::{Arc, OnceLock};

use burn::backend::TensorMetadata;
use burn::module::ParamId;
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};
use parking_lot::Mutex;

use super::Slot;
use super::home::{Home, Keeps};
use super::meeting::Share;
use super::placeholder::{Likeness, gone};
use super::stage::{Accumulated, Expecting, Stage};
use crate::device::{caught, moved};
use crate::offload::Placement;
use crate::pass::Session;
use crate::policy;
use crate::tap::lift;

/// Which of its values a restored parameter has.
#[derive(Clone, Copy)]
pub(crate) enum Which<'a> {
    /// That which rests, on the device of this replica if there are several.
    Rests,
    /// The same, or what says that it is gone.
    RestsOrGone,
    /// The same, where its owner has it.
    RestsWithOwner,
    /// The same on the host, which is this device.
    OnHost(&'a Device),
    /// That with which the model computes, unless it comes over for every use.
    Computes,
}

/// The slot of a parameter of rank `D`.
#[derive(Debug)]
pub(crate) struct ParameterSlot<const D: usize> {
    pub(super) id: ParamId,
    pub(super) path: String,
    pub(super) strategy: GradientCheckpointingStrategy,
    pub(super) session: Arc<Session>,
    /// Whether the backend can tell that a buffer has one owner.
    pub(super) tells_owners: bool,
    pub(super) home: Home,
    /// The path of the frozen parameter that this one adapts, if that waits on the host.
    pub(super) waiting_base: Option<Arc<str>>,
    /// What the value has in common with that which the model computes with.
    likeness: Likeness,
    /// If several replicas have the parameter.
    pub(super) share: OnceLock<Share<D>>,
    pub(super) state: Mutex<State<D>>,
}

#[derive(Debug)]
pub(super) struct State<const D: usize> {
    /// Without autodiff. An update takes it out and puts it back; a rank can be without it, and its owner has it.
    pub(super) value: Option<Tensor<D>>,
    /// What the device computes with, if the value rests on the host.
    pub(super) copy: Option<Tensor<D>>,
    /// What the passes before this one have left for an update.
    pub(super) accumulated: Accumulated<D>,
    pub(super) stage: Stage<D>,
    /// Whether the device has computed a gradient for it.
    pub(super) proven: bool,
}

impl<const D: usize> ParameterSlot<D> {
    /// A slot for `value`, which has no autodiff and goes to where `placement` lets it rest.
    pub(crate) fn new(
        id: ParamId,
        path: &str,
        value: Tensor<D>,
        strategy: GradientCheckpointingStrategy,
        session: Arc<Session>,
        placement: Option<Arc<Placement>>,
    ) -> Self {
        let mut likeness = Likeness::of(&value, placement.as_deref());
        let (home, value) = match session.membership() {
            None => {
                let (home, value) = Home::of(placement, value);
                (home, Some(value))
            }
            Some(member) => {
                likeness.device = member.device().clone();
                // Where ranks hold the parameters of others, they take them over at the end of the first pass.
                let value = member.owns(id).then(|| moved(value, member.device()));
                (Home::Device, value)
            }
        };
        let rests_on = value.as_ref().map(Tensor::device);
        let rests_on = rests_on.unwrap_or_else(|| likeness.device.clone());
        let probe = Tensor::<1>::zeros([1], &rests_on).into_dispatch();
        Self {
            id,
            path: path.to_string(),
            strategy,
            session,
            tells_owners: probe.can_mut(),
            home,
            waiting_base: None,
            likeness,
            share: OnceLock::new(),
            state: Mutex::new(State {
                value,
                copy: None,
                accumulated: Accumulated::Nothing,
                stage: Stage::Unread,
                proven: false,
            }),
        }
    }

    /// The current value without autodiff, where it rests.
    pub(crate) fn value(&self) -> Tensor<D> {
        self.held(&self.state.lock())
    }

    /// The current value without autodiff, as the model computes with it.
    pub(crate) fn plain(&self) -> Tensor<D> {
        self.wait_for_update();
        let mut state = self.state.lock();
        let may_change = || {
            let pass = self.session.pass();
            pass.is_some_and(|pass| pass.plan.goal == policy::Goal::Update)
        };
        if matches!(state.stage, Stage::Complete(_)) && self.share.get().is_some() && may_change() {
            panic!(
                "the value of parameter `{}` was read after its gradient had gone to the other ranks, which \
                 may be stepping it now: read it before the backward pass, or after the step",
                self.path
            );
        }
        self.here(&mut state, Keeps::Copy)
    }

    /// The same as an autodiff constant.
    pub(crate) fn constant(&self) -> Tensor<D> {
        self.constant_of(self.plain())
    }

    /// A value of it as an autodiff constant.
    pub(super) fn constant_of(&self, value: Tensor<D>) -> Tensor<D> {
        lift(value, self.strategy)
    }

    /// A value of it as an ordinary trainable parameter holds it.
    pub(super) fn leaf(&self, which: Which<'_>) -> Tensor<D> {
        let value = match which {
            Which::Rests => self.value(),
            Which::RestsWithOwner => {
                let value = self.at_owner(|state| state.value.clone());
                value.unwrap_or_else(|| self.value())
            }
            Which::OnHost(host) => moved(self.value(), host),
            Which::Computes if self.comes_over() => self.value(),
            Which::Computes => self.plain(),
            // Whatever has ended the pass is on its way: who reads a value that is gone is told.
            Which::RestsOrGone => {
                caught(|| self.value()).unwrap_or_else(|_| gone(&self.likeness, &self.path))
            }
        };
        lift(value, self.strategy).require_grad()
    }

    /// What a placeholder of it is like.
    pub(super) fn likeness(&self) -> &Likeness {
        &self.likeness
    }

    pub(super) fn held(&self, state: &State<D>) -> Tensor<D> {
        let of_owner = || {
            let value = self.value_of_owner()?;
            Some(value.unwrap_or_else(|error| panic!("{error}")))
        };
        state.value.clone().or_else(of_owner).unwrap_or_else(|| {
            panic!(
                "the value of parameter `{}` is gone: its optimizer panicked while it wrote it",
                self.path
            )
        })
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
                self.path
            ),
        }
    }
}
