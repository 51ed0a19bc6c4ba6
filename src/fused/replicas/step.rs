//! Steps of replicas.

use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::GradientsParams;

use super::FusedReplicas;
use super::threads::Work;
use crate::error::FusedError;
use crate::fused::Loss;
use crate::fused::policies::StepSchedule;
use crate::pass::ClosureKind;

impl<M: Module + 'static> FusedReplicas<M> {
    /// Runs one training step on all ranks: forward, backward, update.
    ///
    /// Batch `i` belongs to rank `i`; ranks without a batch run no closure. `forward` computes the loss of a rank from
    /// its batch, as in [`FusedOptimizer::step`](crate::FusedOptimizer::step). The outputs are returned in the order of
    /// the ranks, with the losses detached.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FusedOptimizer::step`](crate::FusedOptimizer::step); also if there is no batch, or there
    /// are more batches than ranks. On several ranks, losses that reach no parameter are no error if gradients are accumulated,
    /// which are then applied. If a rank fails or panics, the step ends on all ranks with [`FusedError::Rank`] or
    /// [`FusedError::RankPanicked`].
    pub fn step<B: Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&M, B) -> L + Send + Sync + 'static,
    ) -> Result<Vec<L>, FusedError> {
        if self.core.policies.schedule == StepSchedule::TwoPass {
            return self.core.refuse(FusedError::RunsTwice);
        }
        let mut batches = Some(self.by_rank(batches)?);
        let batches = || batches.take().expect("the step is one pass");
        self.pass_of_loss(Some(learning_rate.into()), batches, forward)
    }

    /// Runs a [`step`](Self::step) with batches that can be cloned, as [exact
    /// clipping](crate::GlobalNormClippingConfig::Exact) and [skipping a step](crate::Overflow::SkipStep) require. See
    /// [`FusedOptimizer::step_repeatable`](crate::FusedOptimizer::step_repeatable).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`step`](Self::step), except [`RunsTwice`](crate::FusedError::RunsTwice), and of
    /// [`FusedOptimizer::step_repeatable`](crate::FusedOptimizer::step_repeatable).
    pub fn step_repeatable<B: Clone + Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&M, B) -> L + Send + Sync + 'static,
    ) -> Result<Vec<L>, FusedError> {
        let batches = self.by_rank(batches)?;
        self.pass_of_loss(Some(learning_rate.into()), || batches.clone(), forward)
    }

    /// Runs forward and backward on all ranks without an update, as
    /// [`FusedOptimizer::accumulate`](crate::FusedOptimizer::accumulate).
    ///
    /// The gradients of all ranks are added to one sum, which the owner of the parameter keeps, as in Burn's
    /// `OptimMainDevice`. (`OptimSharded` keeps a sum on every rank and adds these at the end. Only the order of the
    /// sums differs.)
    ///
    /// # Errors
    ///
    /// Returns the errors of [`step`](Self::step).
    pub fn accumulate<B: Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&M, B) -> L + Send + Sync + 'static,
    ) -> Result<Vec<L>, FusedError> {
        let mut batches = Some(self.by_rank(batches)?);
        let batches = || batches.take().expect("the step is one pass");
        self.pass_of_loss(None, batches, forward)
    }

    /// Runs [`step_repeatable`](Self::step_repeatable) with a closure that runs the backward pass itself, as
    /// [`FusedOptimizer::step_with_backward`](crate::FusedOptimizer::step_with_backward).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FusedOptimizer::step_with_backward`](crate::FusedOptimizer::step_with_backward) and [`step`](Self::step).
    pub fn step_with_backward<B: Clone + Send + 'static, R: Send + 'static>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
        train: impl Fn(&M, B) -> (R, GradientsParams) + Send + Sync + 'static,
    ) -> Result<Vec<R>, FusedError> {
        let batches = self.by_rank(batches)?;
        let work: Work<M, B, R> = Arc::new(move |model, rank, batch| {
            rank.run(|| {
                let (output, gradients) = train(model, batch);
                rank.check_unedited(&gradients, false)?;
                Ok((output, gradients))
            })
        });
        let Self { core, threads } = self;
        core.step(
            Some(learning_rate.into()),
            ClosureKind::Backward,
            &mut |running| {
                let output = threads.run(running, batches.clone(), &work)?;
                running.check_reached(true)?;
                Ok(output)
            },
        )
    }

    /// Runs a step of a `TrainStep`, or without a learning rate an accumulation. It may reach no parameter. `batches`
    /// returns one batch per rank for every pass.
    #[cfg(feature = "train")]
    pub(crate) fn train_step<B: Send + 'static, R: Send + 'static>(
        &mut self,
        learning_rate: Option<ModuleLearningRate>,
        mut batches: impl FnMut() -> Vec<Option<B>>,
        train: impl Fn(&M, B) -> (R, GradientsParams) + Send + Sync + 'static,
    ) -> Result<Vec<R>, FusedError> {
        let work: Work<M, B, R> = Arc::new(move |model, rank, batch| {
            rank.run(|| {
                let (output, gradients) = train(model, batch);
                rank.check_unedited(&gradients, true)?;
                Ok((output, gradients))
            })
        });
        let Self { core, threads } = self;
        core.step(learning_rate, ClosureKind::Backward, &mut |running| {
            threads.run(running, batches(), &work)
        })
    }

    fn pass_of_loss<B: Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        learning_rate: Option<ModuleLearningRate>,
        mut batches: impl FnMut() -> Vec<Option<B>>,
        forward: impl Fn(&M, B) -> L + Send + Sync + 'static,
    ) -> Result<Vec<L>, FusedError> {
        let work: Work<M, B, L> = Arc::new(move |model, rank, batch| {
            rank.run(|| rank.forward_backward(model, |model| forward(model, batch)))
        });
        let Self { core, threads } = self;
        let is_step = learning_rate.is_some();
        core.step(learning_rate, ClosureKind::Loss, &mut |running| {
            let output = threads.run(running, batches(), &work)?;
            running.check_reached(is_step)?;
            Ok(output)
        })
    }

    /// Returns the batches by rank.
    fn by_rank<B>(
        &mut self,
        batches: impl IntoIterator<Item = B>,
    ) -> Result<Vec<Option<B>>, FusedError> {
        let mut by_rank: Vec<_> = batches.into_iter().map(Some).collect();
        let (ranks, batches) = (self.devices().len(), by_rank.len());
        if batches == 0 || batches > ranks {
            let reason = format!(
                "there are {batches} batches for {ranks} ranks: pass at least one batch, and at most one for each rank"
            );
            return self.core.refuse(FusedError::Replicas { reason });
        }
        by_rank.resize_with(ranks, || None);
        Ok(by_rank)
    }
}
