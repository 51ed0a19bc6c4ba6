//! The part of one rank in a pass.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use backburn_base::caught::{Caught, catch};
use burn::module::Module;
use burn::optim::GradientsParams;

use crate::device::check_async_errors;
use crate::error::FusedError;
use crate::fused::loss::Loss;
use crate::fused::parameter_list::nothing_trained;
use crate::offload::TransferWorkers;
use crate::pass::{ClosureKind, FailedIn, Pass, ReadMode, Scope, StepEvent};
use crate::placement::RankContext;
use crate::replica::Membership;
use crate::tap::on_backward;
use crate::weights::LocalParams;

/// Handles for the thread of a rank in a pass that has begun: its [`Pass`], its parameters and its context.
#[derive(Clone)]
pub(in crate::fused) struct RankPass {
    pub(in crate::fused) pass: Arc<Pass>,
    pub(super) local_params: Arc<LocalParams>,
    pub(super) context: Arc<RankContext>,
    /// `true` if a device reports a failed kernel late.
    pub(super) is_asynchronous: bool,
}

impl RankPass {
    /// Runs `work`, the forward and backward pass, then reports the remaining gradients.
    pub(in crate::fused) fn run<R>(
        &self,
        work: impl FnOnce() -> Result<(R, GradientsParams), FusedError>,
    ) -> Result<R, FusedError> {
        let wait = self.context.transfers.as_ref().map(|all| TransferWait(all));
        if let Some(stream) = &self.pass.numbers.stream {
            self.pass.begin_forward_numbers(stream.clone())?;
        }
        let _scope = Scope::enter_pass(&self.pass, ReadMode::Recorded(self.pass.graph.clone()));
        let (output, gradients) = work()?;
        if !gradients.is_empty() {
            // Checks the loss scale before sums are applied, if no other gradient has arrived.
            self.pass.check_scaled();
        }
        if self.pass.closure_kind == ClosureKind::Backward {
            self.pass.end_forward_numbers();
        }
        if let Some(TransferWait(transfers)) = &wait {
            transfers.wait();
        }
        self.local_params.report_remaining(&self.pass);
        *self.pass.retained_gradients.lock() = gradients;
        Ok(output)
    }

    /// Returns an error if `gradients` were edited after the backward pass, or if they must be complete and one is missing.
    pub(in crate::fused) fn check_unedited(
        &self,
        gradients: &GradientsParams,
        is_complete: bool,
    ) -> Result<(), FusedError> {
        match self.local_params.edited_in(gradients, is_complete) {
            Some(path) => Err(FusedError::GradientReturned {
                path: path.to_string(),
            }),
            None => Ok(()),
        }
    }

    /// Applies accumulated gradients, for a rank without a closure. A failure fails the pass.
    pub(in crate::fused) fn apply_accumulated(&self) {
        let reported = catch(|| {
            let _wait = self.context.transfers.as_ref().map(|all| TransferWait(all));
            let _scope = Scope::enter_pass(&self.pass, ReadMode::Recorded(self.pass.graph.clone()));
            self.local_params.report_remaining(&self.pass);
            Ok(())
        });
        self.fail_pass_on_error(reported);
    }

    /// Returns the result of the part. An error or a panic fails its pass.
    pub(in crate::fused) fn fail_pass_on_error<R>(
        &self,
        done: Result<Result<R, FusedError>, Caught>,
    ) -> Option<R> {
        match done {
            Ok(Ok(output)) => return (!self.pass.has_failed()).then_some(output),
            Ok(Err(error)) => self.pass.fail(FailedIn::Closure, error),
            Err(panic) => self.pass.fail(FailedIn::Closure, panic),
        }
        None
    }

    /// Returns the rank and its group.
    pub(in crate::fused) fn membership(&self) -> &Membership {
        self.context
            .membership
            .as_ref()
            .expect("a training of replicas has a group")
    }

    /// Returns an error if a backward pass that has not failed reached no trained parameter of `model`. `gradients` has those of
    /// retained parameters.
    pub(in crate::fused) fn check_reached<M: Module>(
        &self,
        model: &M,
        gradients: &GradientsParams,
    ) -> Result<(), FusedError> {
        let has_received = self.pass.has_received.load(Ordering::Relaxed);
        if has_received || self.pass.has_failed() || self.local_params.retained_are_in(gradients) {
            return Ok(());
        }
        let parameters = self.local_params.iter().count();
        Err(self.nothing_trained_or(model, FusedError::LossWithoutParameters { parameters }))
    }

    /// Returns `error`, or the reason why no parameter of `model` is trained.
    fn nothing_trained_or<M: Module>(&self, model: &M, error: FusedError) -> FusedError {
        match self.local_params.iter().next() {
            Some(_) => error,
            None => nothing_trained(model).unwrap_or(error),
        }
    }

    /// Runs the forward pass, which returns the loss, and the backward pass. Returns the gradients of the retained parameters.
    pub(in crate::fused) fn forward_backward<M: Module, L: Loss>(
        &self,
        model: &M,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<(L, GradientsParams), FusedError> {
        let loss = forward(model);
        self.pass.begin_backward()?;
        let (loss, root) = loss.detached();
        if !root.is_tracked() {
            return Err(self.nothing_trained_or(model, FusedError::LossNotTracked));
        }
        let mut root = root.0;
        if self.is_asynchronous {
            check_async_errors(&root.clone().inner())
                .map_err(|reason| FusedError::LossNotComputed { reason })?;
        }
        if let Some(losses) = &self.pass.pipeline.losses {
            let member = self.pass.membership.as_ref();
            let rank = member.map_or(0, |member| member.rank);
            losses.compare(rank, root.clone().inner())?;
        }
        if let Some(inputs) = &self.pass.blocks.input_offload {
            inputs.prefetch_last();
        }
        if let Some(scale) = self.pass.pipeline.scale {
            root = root.mul_scalar(scale);
        }
        if let Some(observers) = &self.pass.observers {
            observers.emit(StepEvent::Backward);
        }
        if let Some(membership) = &self.pass.membership {
            let Membership { group, rank } = membership.clone();
            group.flow.request_backward(rank);
            root = on_backward(root, move || group.flow.begin_backward(rank));
        }
        let mut all = root.backward();
        drop(root);
        let retained = &self.local_params.retained;
        let gradients = match retained.is_empty() {
            true => GradientsParams::new(),
            false => GradientsParams::from_params(&mut all, model, retained),
        };
        // Checked before accumulated sums are applied. `RunningPass::check_reached` checks several ranks together.
        if self.pass.membership.is_none() {
            self.check_reached(model, &gradients)?;
        }
        Ok((loss, gradients))
    }
}

/// A guard that waits for all transfers between device and host.
struct TransferWait<'a>(&'a TransferWorkers);

impl Drop for TransferWait<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}
