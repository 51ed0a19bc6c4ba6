//! The threads of all ranks, and what each does in a pass.

use std::sync::Arc;
use std::sync::mpsc::channel;

use burn::module::Module;
use burn::optim::GradientsParams;

use crate::caught::{Caught, catch};
use crate::device::{caught, check_connected, hand_over};
use crate::error::FusedError;
use crate::fused::core::{Computed, Parts, RankPass, Worked, begin};
use crate::pass::Failure;
use crate::random::Stream;
use crate::replica::{Group, Membership, Turn};
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
        let group = ranks[0].0.member().group.clone();
        let takes_part: Vec<bool> = batches.iter().map(Option::is_some).collect();
        begin(&group, &takes_part)?;
        let numbers = numbers(&ranks[0].0, &group, &takes_part)?;
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
            let _turn = turn(&group)?;
            numbers.end();
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
    let end_turn = || {
        let among = part.pass.among.as_ref();
        among.into_iter().for_each(|among| among.end_turn());
    };
    let done = catch(|| {
        let output = part.compute(|| {
            if let Some(among) = &part.pass.among {
                among.begin_turn()?;
            }
            if let Some(numbers) = numbers {
                numbers.start();
            }
            let output = work()?;
            end_turn();
            Ok(output)
        })?;
        // Updates on behalf of others, too: where they fail, the step does.
        group.devices().iter().for_each(hand_over);
        check_connected(|| vec![group.device(*rank).clone()])?;
        Ok(output)
    });
    end_turn();
    let output = part.settled(done)?;
    taken.well();
    Some(output)
}

/// The random numbers that those of all ranks in a pass come from, if they take turns.
fn numbers(
    first: &RankPass,
    group: &Arc<Group>,
    takes_part: &[bool],
) -> Result<Option<Stream>, FusedError> {
    if !group.takes_turns() || !takes_part.contains(&true) {
        return Ok(None);
    }
    let _turn = turn(group)?;
    let devices = group.devices().to_vec();
    let numbers = || {
        Stream::new(devices, |device| match &first.pass.rehearsal {
            Some(rehearsal) => rehearsal.random.seed,
            None => first.pass.blocks.seeds.next(device),
        })
    };
    let numbers = caught(numbers).map_err(|reason| FusedError::DeviceLost {
        device: format!("{:?}", group.device(0)),
        reason,
    });
    numbers.map(Some)
}

/// Waits for the turn to draw random numbers for all ranks.
fn turn(group: &Arc<Group>) -> Result<Turn, FusedError> {
    Turn::take(group, group, group.device(0))
}
