//! The threads of all ranks, and what each does in a pass.

use std::sync::Arc;
use std::sync::mpsc::channel;

use burn::module::Module;
use burn::optim::GradientsParams;

use crate::caught::{Caught, catch};
use crate::device::{caught, check_connected, hand_over};
use crate::error::FusedError;
use crate::fused::core::{Computed, Parts, RankPass, Worked};
use crate::pass::{Failure, Scope};
use crate::random::{RngLock, Stream};
use crate::replica::{Group, Membership};
use crate::worker::Worker;

/// What a rank does in a pass with its batch.
pub(super) type Work<M, B, R> = Arc<dyn Fn(&M, &RankPass, B) -> Worked<R> + Send + Sync>;

/// One thread a rank. They stay: CubeCL keeps a stream for each.
pub(super) struct Crew(Vec<Worker>);

impl Crew {
    pub(super) fn new(ranks: usize) -> Result<Self, FusedError> {
        let thread = |rank| {
            Worker::new(&format!("rank {rank}")).map_err(|error| FusedError::Replicas {
                reason: format!("no thread could be started for rank {rank}: {error}"),
            })
        };
        (0..ranks).map(thread).collect::<Result<_, _>>().map(Self)
    }

    /// Has all ranks that have a batch do their `work`, each on its thread, and the others stand by. Returns what they gave,
    /// in their order; whoever has failed has ended its pass.
    pub(super) fn compute<M: Module + 'static, B: Send + 'static, R: Send + 'static>(
        &self,
        ranks: Parts<'_, M>,
        batches: Vec<Option<B>>,
        work: &Work<M, B, R>,
    ) -> Computed<Vec<R>> {
        let first = &ranks[0].0.clone();
        let group = first.member().group.clone();
        let takes_part: Vec<bool> = batches.iter().map(Option::is_some).collect();
        let numbers = numbers(first, &group)?;
        group.begin(&takes_part);
        // The batches come from this thread.
        group.devices().iter().for_each(hand_over);

        let (sender, computed) = channel();
        let (mut idle, mut at_work) = (Vec::new(), Vec::new());
        for (rank, ((part, model), batch)) in ranks.into_iter().zip(batches).enumerate() {
            let Some(batch) = batch else {
                idle.push(part);
                continue;
            };
            at_work.push((rank, part.clone()));
            let (model, work, sender) = (model.clone(), work.clone(), sender.clone());
            let numbers = numbers.as_ref();
            let numbers = numbers.map(|numbers| numbers.of_rank(rank, group.device(rank)));
            self.0[rank].give(0, usize::MAX, move || {
                let output = take_part(&part, numbers, || work(&model, &part, batch));
                // What it has of the training is gone before anybody goes on.
                drop((model, work, part));
                let _ = sender.send((rank, output));
            });
        }
        drop(sender);
        idle.iter().for_each(RankPass::stand_by);
        let mut outputs: Vec<_> = (0..group.ranks()).map(|_| None).collect();
        for (rank, output) in computed {
            at_work.retain(|(at_work, _)| *at_work != rank);
            outputs[rank] = output;
        }
        for (_, silent) in at_work {
            let reason = "dropping what its closure has left panicked".to_string();
            silent.pass.end_with(Failure::Panic(Caught::saying(reason)));
        }
        if let Some(numbers) = numbers {
            // What is drawn next does not depend on how many numbers the ranks have drawn.
            let locked = lock(first, &group)?;
            if locked.is_some() {
                numbers.end();
            }
        }
        let by_rank = outputs.into_iter().map(|output| match output {
            Some((output, gradients)) => (Some(output), gradients),
            None => (None, GradientsParams::new()),
        });
        let (given, gradients): (Vec<_>, Vec<_>) = by_rank.unzip();
        Ok((given.into_iter().flatten().collect(), gradients))
    }
}

/// Does the part of a rank on its thread: none if that has failed.
fn take_part<R>(
    part: &RankPass,
    numbers: Option<Stream>,
    work: impl FnOnce() -> Worked<R>,
) -> Option<(R, GradientsParams)> {
    let Membership { group, rank } = part.member();
    let taken = group.flow.take_part(*rank);
    let done = catch(|| {
        let output = part.compute(numbers, work)?;
        // Updates on behalf of others, too: where they fail, the step does.
        group.devices().iter().for_each(hand_over);
        check_connected(|| vec![group.device(*rank).clone()])?;
        Ok(output)
    });
    part.pass.release_generators();
    let output = part.settled(done)?;
    taken.well();
    Some(output)
}

/// Returns the stream from which the numbers of all ranks in a pass are derived; `None` if this model draws nothing and another
/// training holds the generators.
fn numbers(first: &RankPass, group: &Arc<Group>) -> Result<Option<Stream>, FusedError> {
    let learned = &first.pass.blocks.learned;
    let holds = |outer: Scope| outer.pass.holds_generators();
    if learned.may_draw() && Scope::current().is_some_and(holds) {
        return Err(FusedError::Replicas {
            reason: "a step of replicas was called in the closure of another step, and each waits for the other to draw \
                     random numbers: call it outside"
                .to_string(),
        });
    }
    let Some(_lock) = lock(first, group)? else {
        return Ok(None);
    };
    let devices = group.devices().to_vec();
    let numbers = || {
        Stream::new(devices, |device| match &first.pass.twice {
            Some(twice) => twice.seed,
            None => first.pass.blocks.seeds.next(device),
        })
    };
    let numbers = caught(numbers).map_err(|reason| FusedError::DeviceLost {
        device: format!("{:?}", group.device(0)),
        reason,
    });
    numbers.map(Some)
}

/// Locks the random generators for all ranks.
fn lock(first: &RankPass, group: &Arc<Group>) -> Result<Option<RngLock>, FusedError> {
    first.pass.lock_generators(&group.devices()[..1])
}
