use std::sync::Arc;

use burn::tensor::{DType, Device};

use super::home::Home;
use super::stage::{Expecting, ParameterReport, Stage};
use super::terms::Terms;
use crate::device::Written;
use crate::error::FusedError;
use crate::layout::Holding;
use crate::lock::{Level, Leveled};
use crate::parameters::AnyTensor;
use crate::pass::Session;

/// What one rank has of a parameter.
#[derive(Debug)]
pub(crate) struct View {
    pub(super) home: Arc<Home>,
    pub(super) session: Arc<Session>,
    pub(super) terms: Terms,
    pub(super) state: Leveled<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) stage: Stage,
    pub(super) copy: Option<Box<HomeCopy>>,
    /// Whether the device has computed a gradient for it.
    pub(super) proven: bool,
}

impl State {
    pub(super) fn has_answered(&self) -> bool {
        matches!(self.stage, Stage::Answered { .. })
    }
}

/// What the model computes with, if that is not the value at home.
#[derive(Debug)]
pub(super) struct HomeCopy {
    pub(super) value: AnyTensor,
    /// Of the value at home.
    pub(super) version: usize,
}

impl HomeCopy {
    pub(super) fn of(value: AnyTensor, version: usize) -> Box<Self> {
        Box::new(Self { value, version })
    }
}

impl View {
    /// That of a rank which has it on these terms.
    pub(super) fn new(home: Arc<Home>, session: Arc<Session>, terms: Terms) -> Self {
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

    /// On which terms the rank has the parameter.
    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(super) fn path(&self) -> &str {
        &self.terms.path
    }

    /// A value of it as an autodiff constant.
    pub(super) fn constant_of(&self, value: AnyTensor) -> AnyTensor {
        value.lifted(self.home.strategy)
    }

    pub(super) fn carried(
        &self,
        value: AnyTensor,
        device: &Device,
        dtype: DType,
    ) -> Result<AnyTensor, FusedError> {
        self.terms.layout.carried(self.path(), value, device, dtype)
    }

    /// What is still to come in this pass.
    ///
    /// # Panics
    ///
    /// If the gradient has come already.
    pub(super) fn expecting<'a>(&self, state: &'a mut State) -> &'a mut Expecting {
        if let Stage::Unread = state.stage {
            state.stage = Stage::Expecting(Box::default());
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

    /// Asks whether the device has computed the value.
    pub(crate) fn ask_written(&self, written: &mut Written) {
        if let Some(copy) = &self.state.lock().copy {
            written.ask(self.path(), &*copy.value);
        }
        if let Some(value) = self.home.find().filter(|_| self.terms.owns()) {
            written.ask(self.path(), &*value);
        }
    }

    /// Lets go of the autodiff graph and says what happened in this pass, which has ended `well` on all ranks or has
    /// not.
    pub(super) fn end(&self, well: bool) -> ParameterReport {
        let shares = self.terms.given == Holding::Shared;
        if !shares {
            self.let_go();
        }
        let stage = std::mem::take(&mut self.state.lock().stage);
        let mut report = self.home.commit(well);
        report.received |= matches!(stage, Stage::Answered { received: true });
        if !shares {
            self.refresh_copy();
        }
        report
    }
}
