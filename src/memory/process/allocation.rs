//! What becomes of every allocation, by the events of a recording.

use std::collections::BTreeMap;

use super::super::timeline::Phase;
use super::events::{Category, Event};

/// What an allocation is used for: an index into the bytes by use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Parameter,
    Gradient,
    State,
    Rest,
}

/// A piece of memory from its birth to its end.
pub(super) struct Allocation {
    pub(super) size: usize,
    /// Index of the event; `None` if it was there before.
    pub(super) born: Option<usize>,
    /// Index of the event; `None` if it is there at the end.
    pub(super) freed: Option<usize>,
    /// What it was shown to be used for, by index of the event. The first counts from its birth.
    pub(super) uses: Vec<(usize, Use)>,
}

impl Allocation {
    fn from_before(size: usize) -> Self {
        Self {
            size,
            born: None,
            freed: None,
            uses: Vec::new(),
        }
    }
}

/// Follows every allocation through the recording.
pub(super) fn allocations(events: &[(f64, Event)], phases: &[Phase]) -> Vec<Allocation> {
    let mut all: Vec<Allocation> = Vec::new();
    let mut live = BTreeMap::<usize, usize>::new();
    let mut born_in_update: Option<Vec<usize>> = None;

    for (index, (_, event)) in events.iter().enumerate() {
        match *event {
            Event::Allocated { address, size } => {
                live.insert(address, all.len());
                if let Some(born) = &mut born_in_update {
                    born.push(all.len());
                }
                all.push(Allocation {
                    size,
                    born: Some(index),
                    freed: None,
                    uses: Vec::new(),
                });
            }
            Event::Freed { address, size } => {
                let allocation = live.remove(&address).unwrap_or_else(|| {
                    all.push(Allocation::from_before(size));
                    all.len() - 1
                });
                all[allocation].freed = Some(index);
            }
            Event::Shown {
                address,
                size,
                category,
            } => {
                let around = live.range(..=address).next_back();
                let known = around
                    .filter(|(start, allocation)| address < **start + all[**allocation].size)
                    .map(|(_, allocation)| *allocation);
                let allocation = known.unwrap_or_else(|| {
                    live.insert(address, all.len());
                    all.push(Allocation::from_before(size));
                    all.len() - 1
                });
                let purpose = match category {
                    Category::Parameter => Use::Parameter,
                    Category::Gradient => Use::Gradient,
                };
                all[allocation].uses.push((index, purpose));
            }
            Event::Block { .. } => {}
            Event::Entered { phase } => {
                // What an update leaves behind is the optimizer's.
                for born in born_in_update.take().into_iter().flatten() {
                    let allocation = &mut all[born];
                    if allocation.freed.is_none() && allocation.uses.is_empty() {
                        allocation.uses.push((index, Use::State));
                    }
                }
                if matches!(phases[phase], Phase::Update { .. }) {
                    born_in_update = Some(Vec::new());
                }
            }
        }
    }
    all
}
