//! The threads of all ranks, and the part of each in a pass.

use std::sync::Arc;
use std::sync::mpsc::channel;

use backburn_base::caught::{Caught, catch};
use backburn_base::flush;
use burn::module::Module;

use crate::device::check_connected;
use crate::error::FusedError;
use crate::fused::core::{RankPass, RunningPass};
use crate::pass::FailedIn;
use crate::replica::Membership;
use crate::threads::Worker;

/// The forward and backward pass of a rank with its batch.
pub(super) type Work<M, B, R> =
    Arc<dyn Fn(&M, &RankPass, B) -> Result<R, FusedError> + Send + Sync>;

/// One thread per rank, for the whole training: CubeCL keeps a stream for each thread.
pub(super) struct RankThreads(Vec<Worker>);

impl RankThreads {
    pub(super) fn new(ranks: usize) -> Result<Self, FusedError> {
        let thread = |rank| {
            Worker::new(&format!("rank {rank}")).map_err(|error| FusedError::Replicas {
                reason: format!("no thread could be started for rank {rank}: {error}. Raise the limit of threads"),
            })
        };
        (0..ranks).map(thread).collect::<Result<_, _>>().map(Self)
    }

    /// Runs `work` with the batch of each rank on the thread of the rank. Ranks without a batch apply accumulated gradients.
    /// Returns the outputs in the order of the ranks. The failure of a rank fails its pass.
    pub(super) fn run<M: Module + 'static, B: Send + 'static, R: Send + 'static>(
        &self,
        running: &RunningPass<M>,
        batches: Vec<Option<B>>,
        work: &Work<M, B, R>,
    ) -> Result<Vec<R>, FusedError> {
        let RunningPass {
            rank_passes,
            attached_modules,
            ..
        } = running;
        let first = &rank_passes[0];
        let group = first.membership().group.clone();
        let has_batch: Vec<bool> = batches.iter().map(Option::is_some).collect();
        group.begin(&has_batch);
        // The batches were computed on this thread.
        group.devices().iter().for_each(flush);

        let (sender, computed) = channel();
        let (mut idle, mut at_work) = (Vec::new(), Vec::new());
        for (rank, (rank_pass, batch)) in rank_passes.iter().zip(batches).enumerate() {
            let Some(batch) = batch else {
                idle.push(rank_pass);
                continue;
            };
            at_work.push((rank, rank_pass.clone()));
            let (rank_pass, model) = (rank_pass.clone(), attached_modules[rank].module.clone());
            let (work, sender) = (work.clone(), sender.clone());
            self.0[rank].submit(0, usize::MAX, move || {
                let output = run_rank(&rank_pass, || work(&model, &rank_pass, batch));
                // All handles to the training are dropped before the caller continues.
                drop((model, work, rank_pass));
                let _ = sender.send((rank, output));
            });
        }
        drop(sender);
        idle.into_iter().for_each(RankPass::apply_accumulated);
        // A thread of a rayon pool works for the pool after a second: a closure may need it.
        self.0.iter().for_each(Worker::wait_idle);
        let mut outputs: Vec<_> = (0..group.ranks()).map(|_| None).collect();
        for (rank, output) in computed {
            at_work.retain(|(at_work, _)| *at_work != rank);
            outputs[rank] = output;
        }
        for (_, silent) in at_work {
            let reason =
                "the destructor of a value that the closure left behind panicked".to_string();
            silent.pass.fail(FailedIn::Closure, Caught::saying(reason));
        }
        Ok(outputs.into_iter().flatten().collect())
    }
}

/// Runs the part of a rank on its thread; `None` if it has failed.
fn run_rank<R>(rank_pass: &RankPass, work: impl FnOnce() -> Result<R, FusedError>) -> Option<R> {
    let Membership { group, rank } = rank_pass.membership();
    let guard = group.flow.enter(*rank);
    let done = catch(|| {
        let output = work()?;
        // Includes updates for other ranks: a failed update fails the step.
        group.devices().iter().for_each(flush);
        check_connected(std::slice::from_ref(group.device(*rank)))?;
        Ok(output)
    });
    rank_pass.pass.numbers.end_turn();
    let output = rank_pass.fail_pass_on_error(done)?;
    guard.succeed();
    Some(output)
}
