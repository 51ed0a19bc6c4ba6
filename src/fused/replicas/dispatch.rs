//! The work of all ranks in a pass, each on its thread, and what has come of it.

use std::sync::Arc;
use std::sync::mpsc::channel;

use burn::module::Module;
use burn::optim::GradientsParams;

use super::task::{Failure, Task, Worked};
use crate::device::caught;
use crate::error::FusedError;
use crate::pass::{Pass, Running};
use crate::random::Stream;
use crate::replica::Group;
use crate::worker::Worker;

/// What a rank does in a pass with its batch, given its number.
pub(super) type Work<M, B, R> = Arc<dyn Fn(&M, &Arc<Pass>, usize, B) -> Worked<R> + Send + Sync>;

/// What has come of the work of all ranks, by rank.
pub(super) struct Ended<R> {
    pub(super) outputs: Vec<(usize, (R, GradientsParams))>,
    pub(super) failed: Vec<(usize, Failure)>,
}

/// Lets all ranks do their part, each on its thread, and waits for them.
pub(super) fn set_to_work<M: Module + 'static, B: Send + 'static, R: Send + 'static>(
    threads: &[Worker],
    group: &Group,
    tasks: Vec<((Task, M), Option<B>)>,
    numbers: Option<&Stream>,
    work: &Work<M, B, R>,
) -> Ended<R> {
    let (sender, outcomes) = channel();
    let (mut idle, mut at_work) = (Vec::new(), Vec::new());
    for ((task, module), batch) in tasks {
        let rank = task.rank;
        let Some(batch) = batch else {
            idle.push(task);
            continue;
        };
        at_work.push(rank);
        let (work, sender) = (work.clone(), sender.clone());
        let numbers = numbers.map(|numbers| numbers.of_rank(rank, group.device(rank)));
        threads[rank].give(0, usize::MAX, move || {
            let outcome = task.run(numbers, |pass| work(&module, pass, rank, batch));
            // The module is gone before anybody goes on.
            drop((module, work));
            let _ = sender.send((rank, outcome));
        });
    }
    drop(sender);
    let mut ended = Ended {
        outputs: Vec::new(),
        failed: Vec::new(),
    };
    for task in idle {
        let rank = task.rank;
        ended
            .failed
            .extend(task.stand_by().err().map(|failure| (rank, failure)));
    }
    for (rank, outcome) in outcomes {
        at_work.retain(|at_work| *at_work != rank);
        match outcome {
            Ok(output) => ended.outputs.push((rank, output)),
            Err(failure) => ended.failed.push((rank, failure)),
        }
    }
    let silent = || Failure::Panic("dropping what its closure has left panicked".to_string());
    ended
        .failed
        .extend(at_work.into_iter().map(|rank| (rank, silent())));
    ended.outputs.sort_by_key(|(rank, _)| *rank);
    ended
}

/// Goes on with the error of the first rank that has failed, if one has.
pub(super) fn check(
    group: &Group,
    mut failed: Vec<(usize, Failure)>,
    running: &[Running],
    repeats: bool,
) -> Result<(), FusedError> {
    let first = group.failed();
    failed.sort_by_key(|(rank, _)| (Some(*rank) != first, *rank));
    // An update on behalf of all ends the pass of the owner, which may have been through before.
    let passes = running.iter().enumerate().map(|(rank, running)| {
        let ended = caught(|| running.pass.check());
        (
            rank,
            ended
                .map_err(Failure::Panic)
                .and_then(|ended| ended.map_err(Failure::Error)),
        )
    });
    let passes: Vec<_> = passes
        .filter_map(|(rank, ended)| Some((rank, ended.err()?)))
        .collect();
    match passes.into_iter().chain(failed).next() {
        None => Ok(()),
        Some((rank, failure)) => Err(failure.on(rank, group, repeats)),
    }
}
