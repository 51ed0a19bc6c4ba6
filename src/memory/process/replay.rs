//! From the events of a recording to a timeline.

use super::super::block_run::{BlockMoments, BlockRun, SeenBlocks};
use super::super::error::MemoryError;
use super::super::timeline::{Bytes, Mark, MemoryTimeline, Phase, Sample};
use super::allocation::{Use, allocations};
use super::events::Event;

/// A sample is kept when the total has changed by this part of the peak.
const RESOLUTION: usize = 2000;

/// Builds the timeline of a recording that began with `before` bytes in use.
pub(super) fn replay(
    before: usize,
    events: &[(f64, Event)],
    phases: Vec<Phase>,
    blocks: SeenBlocks,
    lost: usize,
) -> Result<MemoryTimeline, MemoryError> {
    // One of them is the phase that begins with the log.
    if events.len() < 2 {
        return Err(MemoryError::Empty);
    }
    let (mut bytes, changes) = changes(before, events, &phases);
    let peak = peak(bytes, &changes);

    let mut marks = Vec::new();
    let mut samples: Vec<Sample> = Vec::new();
    let mut moments = BlockMoments::default();
    for ((seconds, event), changes) in events.iter().zip(changes) {
        changes.iter().for_each(|change| change.apply(&mut bytes));
        let entered = match event {
            Event::Entered { phase } => {
                let phase = phases[*phase].clone();
                let seconds = *seconds;
                marks.push(Mark { seconds, phase });
                true
            }
            _ => false,
        };
        let Some(mark) = marks.len().checked_sub(1) else {
            continue;
        };
        let sample = Sample {
            seconds: *seconds,
            mark,
            bytes: by_category(bytes),
            reserved: None,
        };
        let total = sample.bytes.total();
        if let Event::Block { run } = *event {
            moments.note(BlockRun(run), *seconds, total);
        }
        let last = samples.last().map(|sample| sample.bytes.total());
        let changed = last.is_none_or(|last| total.abs_diff(last) > peak / RESOLUTION);
        if entered || changed || total == peak && last != Some(peak) {
            samples.push(sample);
        }
    }
    Ok(MemoryTimeline {
        samples,
        marks,
        blocks: moments.blocks(blocks),
        lost,
        pools: Vec::new(),
    })
}

/// Bytes that change their use; `None` is memory not in use.
#[derive(Clone, Copy)]
struct Change {
    size: i64,
    from: Option<Use>,
    to: Option<Use>,
}

impl Change {
    fn apply(self, bytes: &mut [i64; 4]) {
        if let Some(from) = self.from {
            bytes[from as usize] -= self.size;
        }
        if let Some(to) = self.to {
            bytes[to as usize] += self.size;
        }
    }
}

/// The bytes by use at the start, and what changes at each event.
fn changes(
    before: usize,
    events: &[(f64, Event)],
    phases: &[Phase],
) -> ([i64; 4], Vec<Vec<Change>>) {
    let mut start = [0; 4];
    start[Use::Rest as usize] = before as i64;
    let mut changes = vec![Vec::new(); events.len()];

    for allocation in allocations(events, phases) {
        let size = allocation.size as i64;
        let mut uses = allocation.uses.into_iter();
        let mut current = uses.next().map_or(Use::Rest, |(_, purpose)| purpose);
        let first = Change {
            size,
            from: allocation.born.is_none().then_some(Use::Rest),
            to: Some(current),
        };
        match allocation.born {
            Some(born) => changes[born].push(first),
            None => first.apply(&mut start),
        }
        for (index, purpose) in uses {
            changes[index].push(Change {
                size,
                from: Some(current),
                to: Some(purpose),
            });
            current = purpose;
        }
        if let Some(freed) = allocation.freed {
            changes[freed].push(Change {
                size,
                from: Some(current),
                to: None,
            });
        }
    }
    (start, changes)
}

/// The most bytes in use.
fn peak(mut bytes: [i64; 4], changes: &[Vec<Change>]) -> usize {
    let totals = changes.iter().map(|changes| {
        changes.iter().for_each(|change| change.apply(&mut bytes));
        by_category(bytes).total()
    });
    totals.max().unwrap_or(0)
}

fn by_category(bytes: [i64; 4]) -> Bytes {
    let of = |purpose: Use| bytes[purpose as usize].max(0) as usize;
    Bytes {
        parameters: of(Use::Parameter),
        gradients: of(Use::Gradient),
        optimizer_state: of(Use::State),
        rest: of(Use::Rest),
        unassigned: 0,
    }
}
