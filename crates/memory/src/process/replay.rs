//! Conversion of the events of a recording to a timeline.

use super::super::block_run::{BlockMoments, BlockRun, SeenBlocks};
use super::super::error::MemoryError;
use super::super::timeline::{Bytes, CompletedGradient, Mark, MemoryTimeline, Phase, Sample};
use super::events::{self, Category, Event};
use super::uses::{Change, Uses};

/// A sample is stored when the total has changed by this fraction of the peak.
const RESOLUTION: usize = 2000;

/// Builds the timeline of the log, which started with `before` bytes in use.
pub(super) fn replay(
    before: usize,
    phases: Vec<Phase>,
    blocks: SeenBlocks,
) -> Result<MemoryTimeline, MemoryError> {
    // The log starts with one event, its first phase.
    if events::events().nth(1).is_none() {
        return Err(MemoryError::Empty);
    }
    let uses = Uses::of(events::events(), &phases);
    let mut peak = 0;
    walk(before, &uses, |_, _, bytes| peak = peak.max(bytes.total()));

    let mut marks = Vec::new();
    let mut samples: Vec<Sample> = Vec::new();
    let mut moments = BlockMoments::default();
    let mut gradients = Vec::new();
    walk(before, &uses, |seconds, event, bytes| {
        let entered = match event {
            Event::Entered { phase } => {
                let phase = phases[phase].clone();
                marks.push(Mark { seconds, phase });
                true
            }
            _ => false,
        };
        let Some(mark) = marks.len().checked_sub(1) else {
            return;
        };
        let total = bytes.total();
        if let Event::Block { run } = event {
            moments.note(BlockRun(run), seconds, total);
        }
        if let Event::Gradient { size: bytes } = event {
            gradients.push(CompletedGradient { seconds, bytes });
        }
        let last = samples.last().map(|sample| sample.bytes.total());
        let changed = last.is_none_or(|last| total.abs_diff(last) > peak / RESOLUTION);
        if entered || changed || total == peak && last != Some(peak) {
            samples.push(Sample {
                seconds,
                mark,
                bytes,
                reserved: None,
            });
        }
    });
    Ok(MemoryTimeline {
        samples,
        marks,
        blocks: moments.blocks(blocks),
        gradients,
        lost: events::lost(),
    })
}

/// Calls `step` for each event with its seconds, and the bytes in use after it.
fn walk(before: usize, uses: &Uses, mut step: impl FnMut(f64, Event, Bytes)) {
    let mut bytes = [0; 4];
    bytes[Category::Rest as usize] = before as i64;
    let apply = |bytes: &mut [i64; 4], change: Change| {
        let size = change.size as i64;
        if let Some(from) = change.from {
            bytes[from as usize] -= size;
        }
        if let Some(to) = change.to {
            bytes[to as usize] += size;
        }
    };
    uses.before.iter().for_each(|it| apply(&mut bytes, *it));
    for (index, (seconds, event)) in events::events().enumerate() {
        uses.changes(index, event)
            .for_each(|change| apply(&mut bytes, change));
        step(seconds, event, by_category(bytes));
    }
}

fn by_category(bytes: [i64; 4]) -> Bytes {
    let of = |category: Category| bytes[category as usize].max(0) as usize;
    Bytes {
        parameters: of(Category::Parameter),
        gradients: of(Category::Gradient),
        optimizer_state: of(Category::State),
        rest: of(Category::Rest),
        unassigned: 0,
    }
}
