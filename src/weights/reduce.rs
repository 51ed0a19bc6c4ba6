//! The gradient of a parameter on the way to a master elsewhere: on another device, on the host, or shared by several ranks.

use std::sync::Arc;

use backburn_base::{AnyTensor, flush};

use super::gradient_state::{GradientState, HeldGradient};
use super::local_param::LocalParam;
use super::master_param::MasterParam;
use crate::error::FusedError;
use crate::pass::{FailedIn, Failure, Pass};
use crate::policy::Accumulation;
use crate::replica::{Group, HeldBytes, Membership};
use crate::tap;

impl LocalParam {
    /// Sends the gradient of this rank, or its absence, to the master.
    pub(super) fn send_to_master(
        &self,
        pass: &Arc<Pass>,
        gradient: Option<AnyTensor>,
    ) -> Result<(), FusedError> {
        let master = &self.master;
        let ranks = self.membership.as_ref();
        if gradient.is_none() && ranks.is_some() {
            if pass.has_failed() {
                return Ok(());
            }
            *self.gradient.lock() = GradientState::Done { received: false };
        }
        let hold = gradient
            .as_ref()
            .and(ranks)
            .map(|member| self.track_gradient(member));
        let gradient = gradient
            .map(|gradient| self.to_storage(pass, gradient))
            .transpose()?;
        let Some(member) = ranks else {
            master.apply_gradients(pass, gradient);
            // The new copy is transferred while other gradients are computed.
            return self.copy.update_cached();
        };
        let held = gradient.zip(hold);
        let held = held.map(|(gradient, hold)| HeldGradient { gradient, hold });
        let all = master.state.lock().rank_gradients.set(member, held);
        if let Some(all) = all {
            let gradients = member.group.in_order(master.id, all);
            apply_rank_gradients(master, &member.group, gradients);
        }
        Ok(())
    }

    /// Transfers a gradient to the location of the master: in the master's float type, or in a wider one if the sum is
    /// rounded once.
    fn to_storage(&self, pass: &Pass, gradient: AnyTensor) -> Result<AnyTensor, FusedError> {
        let master = &self.master;
        let is_wider = gradient.dtype().size() > master.dtype.size();
        let dtype = match pass.pipeline.accumulation {
            Accumulation::InFullPrecision if is_wider => gradient.dtype(),
            _ => master.dtype,
        };
        let device = &master.storage.location.device;
        let gradient = self.copy.transfer(gradient, device, dtype)?;
        if master.storage.location.is_host
            && let Some(engine) = &self.context.engine
        {
            // The gradient must leave the device before the update begins.
            flush(&engine.device);
        }
        Ok(gradient)
    }

    /// Tracks the bytes of a gradient that arrived on this rank. From here on the owner holds it.
    fn track_gradient(&self, member: &Membership) -> HeldBytes {
        let bytes = self.copy.bytes();
        let owner = self.context.owner(self.master.id);
        if member.rank != owner {
            drop(member.group.memory_tracker.track(member.rank, bytes));
        }
        member.group.memory_tracker.track(owner, bytes)
    }

    /// Waits while this rank is too far ahead of the others.
    pub(super) fn wait_for_others(&self, pass: &Arc<Pass>, member: &Membership) {
        if pass.update_has_failed() {
            return;
        }
        let device = member.device();
        let waits = member
            .group
            .flow
            .report_sent(member.rank, self.master.bytes(), || !tap::is_free(device));
        if waits.is_err() {
            let reason = "it waits in its backward pass for a rank that waits for it: both compute with the same tracked \
                 tensor, so Burn joins their autodiff graphs and locks both. Detach the tensors that the closure \
                 captures, and give each rank its own tensor";
            pass.fail(FailedIn::Closure, Failure::Deadlock(reason.to_string()));
            panic!("{reason}");
        }
    }
}

/// Applies the gradients of all ranks, in the order of their sum. An error fails the pass of the owner.
fn apply_rank_gradients(master: &MasterParam, group: &Group, gradients: Vec<HeldGradient>) {
    let owner = master.session.get();
    let Some(pass) = owner.and_then(|session| session.pass.lock().clone()) else {
        return;
    };
    if pass.update_has_failed() || group.flow.failed().is_some() {
        return;
    }
    let gradients = gradients.into_iter();
    let (gradients, holds): (Vec<_>, Vec<_>) =
        gradients.map(|held| (held.gradient, held.hold)).unzip();
    pass.guarded(FailedIn::Update, || {
        master.apply_gradients(&pass, gradients);
    });
    drop(holds);
    if pass.update_has_failed() {
        // The pass has failed on all ranks: no further gradient is applied.
        group.flow.fail(group.owner(master.id));
    }
}
