use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use super::home::Home;
use super::stage::{Expecting, Stage};
use super::terms::Terms;
use crate::error::FusedError;
use crate::lock::{Level, Leveled};
use crate::pass::Session;
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
    pub(super) copy: Option<Box<HomeCopy<D>>>,
    /// Whether the device has computed a gradient for it.
    pub(super) proven: bool,
}

impl<const D: usize> State<D> {
    pub(super) fn has_answered(&self) -> bool {
        matches!(self.stage, Stage::Answered { .. })
    }
}

/// What the model computes with, if that is not the value at home.
#[derive(Debug)]
pub(super) struct HomeCopy<const D: usize> {
    pub(super) value: Tensor<D>,
    /// Of the value at home.
    pub(super) version: usize,
}

impl<const D: usize> HomeCopy<D> {
    pub(super) fn of(value: Tensor<D>, version: usize) -> Box<Self> {
        Box::new(Self { value, version })
    }
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

    pub(super) fn carried(
        &self,
        value: Tensor<D>,
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor<D>, FusedError> {
        self.terms.layout.carried(self.path(), value, device, dtype)
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
