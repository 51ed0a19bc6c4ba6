//! Executors of the closure of a step: [`Inline`] for one rank; `replicas` has one with threads.

use burn::module::Module;
use burn::optim::GradientsParams;

use super::rank_pass::RankPass;
use crate::error::FusedError;
use crate::pass::Closure;
use crate::weights::AttachedModule;

/// The output of the closure of a rank, with the gradients of its ordinary leaves.
pub(in crate::fused) type RankOutput<R> = Result<(R, GradientsParams), FusedError>;

/// The outputs of all ranks, with the gradients of each.
pub(in crate::fused) type RankOutputs<R> = Result<(R, Vec<GradientsParams>), FusedError>;

/// Runs the closures of all ranks in the passes of a step.
pub(in crate::fused) trait RankExecutor<M: Module> {
    /// The outputs of the closures.
    type Output;

    /// Returns the kind of closure of each rank.
    fn closures(&self) -> &[Closure];

    /// Runs the part of every rank in a pass, each with its attached module.
    fn run(
        &mut self,
        ranks: &[RankPass],
        attached_modules: &[AttachedModule<M>],
    ) -> RankOutputs<Self::Output>;
}

/// An executor that runs the closure of the only rank on the calling thread.
pub(in crate::fused) struct Inline<F> {
    pub(in crate::fused) closure: Closure,
    /// Runs the closure with the module, and the backward pass.
    pub(in crate::fused) work: F,
}

impl<M, R, F> RankExecutor<M> for Inline<F>
where
    M: Module,
    F: FnMut(&RankPass, &M) -> RankOutput<R>,
{
    type Output = R;

    fn closures(&self) -> &[Closure] {
        std::slice::from_ref(&self.closure)
    }

    fn run(
        &mut self,
        ranks: &[RankPass],
        attached_modules: &[AttachedModule<M>],
    ) -> RankOutputs<R> {
        let (rank, model) = (&ranks[0], &attached_modules[0].module);
        let numbers = rank.pass.twice.clone();
        let (output, gradients) = rank.run(numbers, || (self.work)(rank, model))?;
        Ok((output, vec![gradients]))
    }
}

/// An executor without closures: every rank applies its accumulated gradients.
pub(super) struct WithoutClosures(pub(super) Vec<Closure>);

impl<M: Module> RankExecutor<M> for WithoutClosures {
    type Output = ();

    fn closures(&self) -> &[Closure] {
        &self.0
    }

    fn run(
        &mut self,
        ranks: &[RankPass],
        _attached_modules: &[AttachedModule<M>],
    ) -> RankOutputs<()> {
        if let Some(member) = &ranks[0].context.member {
            member.group.begin(&vec![false; ranks.len()]);
        }
        let gradients = ranks.iter().map(|rank| {
            rank.apply_accumulated();
            GradientsParams::new()
        });
        Ok(((), gradients.collect()))
    }
}
