//! From the log of a recording to a timeline.

use std::collections::BTreeMap;

use super::block::{BlockMoments, BlockRun, SeenBlocks};
use super::error::MemoryError;
use super::events::{Category, Event};
use super::timeline::{Bytes, Mark, MemoryTimeline, Phase, Sample};

/// A sample is kept when the total has changed by this part of the peak.
const RESOLUTION: usize = 2000;

/// What a block of memory is used for: an index into the bytes by use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Parameter,
    Gradient,
    State,
    Rest,
}

/// Builds the timeline of a recording that began with `before` bytes in use.
pub(super) fn replay(
    before: usize,
    events: &[(f64, Event)],
    phases: Vec<Phase>,
    blocks: SeenBlocks,
    lost: usize,
) -> Result<MemoryTimeline, MemoryError> {
    // The recorder enters one phase by itself.
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

/// A block of memory from its allocation to its end.
struct Block {
    size: usize,
    /// Index of the event; `None` if it was there before.
    born: Option<usize>,
    freed: Option<usize>,
    /// What it was shown to be used for, by index of the event. The first counts from its birth.
    uses: Vec<(usize, Use)>,
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

    for block in blocks(events, phases) {
        let size = block.size as i64;
        let mut uses = block.uses.into_iter();
        let mut current = uses.next().map_or(Use::Rest, |(_, purpose)| purpose);
        let first = Change {
            size,
            from: block.born.is_none().then_some(Use::Rest),
            to: Some(current),
        };
        match block.born {
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
        if let Some(freed) = block.freed {
            changes[freed].push(Change {
                size,
                from: Some(current),
                to: None,
            });
        }
    }
    (start, changes)
}

/// Follows every block through the recording.
fn blocks(events: &[(f64, Event)], phases: &[Phase]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut live = BTreeMap::<usize, usize>::new();
    let mut born_in_update: Option<Vec<usize>> = None;

    for (index, (_, event)) in events.iter().enumerate() {
        match *event {
            Event::Allocated { address, size } => {
                live.insert(address, blocks.len());
                if let Some(born) = &mut born_in_update {
                    born.push(blocks.len());
                }
                blocks.push(Block {
                    size,
                    born: Some(index),
                    freed: None,
                    uses: Vec::new(),
                });
            }
            Event::Freed { address, size } => {
                let block = live.remove(&address).unwrap_or_else(|| {
                    blocks.push(Block::from_before(size));
                    blocks.len() - 1
                });
                blocks[block].freed = Some(index);
            }
            Event::Shown {
                address,
                size,
                category,
            } => {
                let around = live.range(..=address).next_back();
                let known = around
                    .filter(|(start, block)| address < **start + blocks[**block].size)
                    .map(|(_, block)| *block);
                let block = known.unwrap_or_else(|| {
                    live.insert(address, blocks.len());
                    blocks.push(Block::from_before(size));
                    blocks.len() - 1
                });
                let purpose = match category {
                    Category::Parameter => Use::Parameter,
                    Category::Gradient => Use::Gradient,
                };
                blocks[block].uses.push((index, purpose));
            }
            Event::Block { .. } => {}
            Event::Entered { phase } => {
                // What an update leaves behind is the optimizer's.
                for block in born_in_update.take().into_iter().flatten() {
                    let block = &mut blocks[block];
                    if block.freed.is_none() && block.uses.is_empty() {
                        block.uses.push((index, Use::State));
                    }
                }
                if matches!(phases[phase], Phase::Update { .. }) {
                    born_in_update = Some(Vec::new());
                }
            }
        }
    }
    blocks
}

impl Block {
    fn from_before(size: usize) -> Self {
        Self {
            size,
            born: None,
            freed: None,
            uses: Vec::new(),
        }
    }
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
