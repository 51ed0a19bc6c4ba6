//! What a rank does in a pass.

use std::sync::Arc;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;

use crate::caught::{Caught, catch};
use crate::device::check_written;
use crate::error::FusedError;
use crate::layout::Layout;
use crate::loss::{Loss, Told};
use crate::memory;
use crate::offload::Transfers;
use crate::pass::{Closure, Failure, Pass, Scope};
use crate::random::Stream;
use crate::replica::Membership;
use crate::weights::Views;

/// What the closure of a rank gives, with the gradients of the parameters that are ordinary leaves.
pub(in crate::fused) type Worked<R> = Result<(R, GradientsParams), FusedError>;

/// The same of all ranks.
pub(in crate::fused) type Computed<R> = Result<(R, Vec<GradientsParams>), FusedError>;

/// The parts of all ranks in a pass, each with its model.
pub(in crate::fused) type Parts<'a, M> = Vec<(RankPass, &'a M)>;

/// What a door has the ranks do in the passes of a step.
pub(in crate::fused) struct Task<'a, M, R> {
    /// What the closure of each rank does.
    pub(in crate::fused) closures: &'a [Closure],
    /// Has every rank [compute](RankPass::compute) its part of a pass with its model.
    pub(in crate::fused) compute: &'a mut dyn FnMut(Parts<'_, M>) -> Computed<R>,
}

impl<M, R> Task<'_, M, R> {
    /// Whether a rank has a closure.
    pub(super) fn computes(&self) -> bool {
        self.closures.iter().any(|it| *it != Closure::Nothing)
    }
}

/// The part of one rank in a pass that has begun, on whichever thread.
#[derive(Clone)]
pub(in crate::fused) struct RankPass {
    pub(in crate::fused) pass: Arc<Pass>,
    pub(super) views: Arc<Views>,
    pub(super) layout: Arc<Layout>,
    /// Where it computes.
    pub(super) devices: Vec<Device>,
    /// Whether a device that has not computed something says so when it is asked.
    pub(super) read_late: bool,
    /// Whether one of the devices is behind a server.
    pub(super) remote: bool,
}

impl RankPass {
    /// Does the `work` of a closure, and uses what the backward pass has left then.
    /// Its forward pass begins with `numbers`, if it has some of its own.
    pub(in crate::fused) fn compute<R>(
        &self,
        numbers: Option<Stream>,
        work: impl FnOnce() -> Worked<R>,
    ) -> Worked<R> {
        let in_flight = self.layout.transfers.as_ref().map(|all| InFlight(all));
        let late = match self.read_late || self.remote {
            true => &self.devices[..],
            false => &[],
        };
        self.pass.begin_forward(numbers, &self.devices, late)?;
        let _scope = Scope::of_step(&self.pass).enter();
        let worked = work()?;
        if let Some(path) = self.views.released_in(&worked.1) {
            let path = path.to_string();
            return Err(FusedError::GradientReturned { path });
        }
        self.pass.end_forward();
        if let Some(InFlight(transfers)) = &in_flight {
            transfers.wait();
        }
        self.views.flush(&self.pass);
        Ok(worked)
    }

    /// The same without a closure: uses what has been accumulated. What goes wrong ends the pass.
    pub(in crate::fused) fn stand_by(&self) {
        let flushed = catch(|| {
            let _in_flight = self.layout.transfers.as_ref().map(|all| InFlight(all));
            let _scope = Scope::of_step(&self.pass).enter();
            self.views.flush(&self.pass);
            Ok(())
        });
        self.settled(flushed);
    }

    /// What the part has given; what it has failed with ends its pass.
    pub(in crate::fused) fn settled<R>(
        &self,
        done: Result<Result<R, FusedError>, Caught>,
    ) -> Option<R> {
        match done {
            Ok(Ok(output)) => return (!self.pass.has_failed()).then_some(output),
            Ok(Err(error)) => self.pass.end_with(Failure::Error(error)),
            Err(panic) => self.pass.end_with(Failure::Panic(panic)),
        }
        None
    }

    /// Which of several ranks it is that of.
    pub(in crate::fused) fn member(&self) -> &Membership {
        self.layout.member.as_ref().expect("there are several")
    }

    /// Computes the loss, and the gradients back from it.
    pub(in crate::fused) fn there_and_back<M: Module, L: Loss>(
        &self,
        model: &M,
        forward: impl FnOnce(&M) -> L,
    ) -> Worked<L> {
        let loss = forward(model);
        // A backward pass inside of the closure has failed in a block, and gone on.
        self.pass.take_failure().map_or(Ok(()), Failure::go_on)?;
        if !loss.has_graph() {
            return Err(FusedError::LossNotTracked);
        }
        if self.read_late {
            check_written(&loss.numbers())
                .map_err(|reason| FusedError::LossNotComputed { reason })?;
        }
        self.pass.enter_backward();
        let begins = self.pass.among.as_ref().map(|among| {
            let Membership { group, rank } = among.clone();
            group.flow.ready(rank);
            Box::new(move || group.flow.begun(rank)) as Told
        });
        if self.pass.is_recorded {
            memory::enter(memory::Phase::Backward);
            memory::end_beyond_limit();
        }
        let (loss, mut gradients) = loss.go_back(self.pass.plan.scale, begins);
        let gradients = GradientsParams::from_params(&mut gradients, model, &self.views.leaves);
        Ok((loss, gradients))
    }
}

/// Waits, when dropped, for what is on its way between a device and the host.
struct InFlight<'a>(&'a Transfers);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// Has all ranks stand by in a pass, which then only uses what has been accumulated.
pub(super) fn all_stand_by<M>(ranks: Parts<'_, M>) -> Computed<()> {
    if let Some(member) = &ranks[0].0.layout.member {
        member.group.begin(&vec![false; ranks.len()]);
    }
    let gradients = ranks.iter().map(|(part, _)| {
        part.stand_by();
        GradientsParams::new()
    });
    Ok(((), gradients.collect()))
}
