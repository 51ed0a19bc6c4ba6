//! What one device does in a pass, on whichever thread.

use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;

use super::run::Order;
use crate::device::{self, Written};
use crate::error::FusedError;
use crate::layout::Layout;
use crate::loss::{Loss, Told};
use crate::memory;
use crate::offload::Placement;
use crate::pass::{BlockChoice, Closure, Pass, Running, Session};
use crate::replica::Membership;
use crate::weights::FusedForm;

/// Begins a pass in `session`, whose model is `form`.
pub(super) fn begin<M: Module>(
    session: &Arc<Session>,
    form: &FusedForm<M>,
    closure: Closure,
    order: Order,
    choice: BlockChoice,
) -> Running {
    let Order { plan, rehearsal } = order;
    let layout = form.layout();
    let blocks = session.blocks(choice, rehearsal.as_deref(), layout.rank());
    let pass = Pass::new(plan, blocks, closure, rehearsal, form.foresight());
    session.begin(pass.of_rank(layout.member()))
}

/// Computes the loss, and the gradients back from it: returns those of the parameters that are ordinary leaves.
pub(super) fn there_and_back<M: Module, L: Loss>(
    model: &M,
    pass: &Arc<Pass>,
    retained: &[ParamId],
    rank: usize,
    forward: impl FnOnce(&M) -> L,
) -> Result<(L, GradientsParams), FusedError> {
    let loss = forward(model);
    // A backward pass inside of the closure has failed in a block, and gone on.
    pass.check()?;
    if !loss.has_graph() {
        return Err(FusedError::LossNotTracked);
    }
    device::check_written(&loss.numbers())
        .map_err(|reason| FusedError::LossNotComputed { reason })?;
    if let Some(rehearsal) = &pass.rehearsal
        && !rehearsal.agrees(rank, &loss)
    {
        return Err(FusedError::other_passes());
    }
    pass.enter_backward();
    let begins = pass.among_others().map(|Membership { group, rank }| {
        group.ready(rank);
        Box::new(move || group.begun(rank)) as Told
    });
    memory::enter(memory::Phase::Backward);
    let (loss, mut gradients) = loss.go_back(pass.plan.scale, begins);
    let gradients = GradientsParams::from_params(&mut gradients, model, retained);
    Ok((loss, gradients))
}

/// Waits, when dropped, for what is on its way between a device and the host.
pub(super) struct InFlight(Option<Arc<Placement>>);

impl InFlight {
    pub(super) fn of(layout: &Layout) -> Self {
        Self(layout.placement().cloned())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(placement) = &self.0 {
            placement.wait();
        }
    }
}

/// Refuses values that their device has not computed.
pub(super) fn check_written<'a, M: Module + 'a>(
    forms: impl IntoIterator<Item = &'a FusedForm<M>>,
) -> Result<(), FusedError> {
    let mut written = Written::new();
    for form in forms {
        let views = form.views().iter();
        views.for_each(|view| view.ask_written(&mut written));
    }
    written.answer()
}
