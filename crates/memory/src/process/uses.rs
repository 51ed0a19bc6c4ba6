//! Use of every allocation of a recording.

use std::collections::{BTreeMap, HashMap};

use super::super::timeline::Phase;
use super::events::{Category, Event};

/// Bytes that change their use; `None` is free memory.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) size: usize,
    pub(super) from: Option<Category>,
    pub(super) to: Option<Category>,
}

/// Differences of a recording from one in which all memory is `rest`. Events are identified by their index.
#[derive(Default)]
pub(super) struct Uses {
    /// Changes of memory that was allocated before.
    pub(super) before: Vec<Change>,
    /// Changes that replace an allocation or a release of `rest`, or that accompany another event.
    at: HashMap<usize, Vec<Change>>,
}

/// An allocation in use.
struct Allocation {
    size: usize,
    /// Event of the allocation; `None` before the recording.
    born: Option<usize>,
    /// Reported uses, with their events. The first counts from the allocation.
    uses: Vec<(usize, Category)>,
}

impl Uses {
    /// Follows every allocation through the recording.
    pub(super) fn of(events: impl Iterator<Item = (f64, Event)>, phases: &[Phase]) -> Self {
        let mut found = Self::default();
        let mut live = BTreeMap::<usize, Allocation>::new();
        // Addresses of the allocations of the current update.
        let mut in_update: Option<Vec<usize>> = None;

        for (index, (_, event)) in events.enumerate() {
            match event {
                Event::Allocated { address, size } => {
                    if let Some(addresses) = &mut in_update {
                        addresses.push(address);
                    }
                    let born = Some(index);
                    let uses = Vec::new();
                    live.insert(address, Allocation { size, born, uses });
                }
                Event::Freed { address, .. } => {
                    if let Some(allocation) = live.remove(&address) {
                        found.add(allocation, Some(index));
                    }
                }
                Event::Used {
                    address,
                    size,
                    category,
                } => {
                    let around = live.range(..=address).next_back();
                    let known = around.filter(|(start, it)| address < **start + it.size);
                    let start = known.map_or(address, |(start, _)| *start);
                    let allocation = live.entry(start).or_insert(Allocation {
                        size,
                        born: None,
                        uses: Vec::new(),
                    });
                    allocation.uses.push((index, category));
                }
                Event::Block { .. } | Event::Gradient { .. } => {}
                Event::Entered { phase } => {
                    // Memory that outlives an update is optimizer state.
                    for address in in_update.take().into_iter().flatten() {
                        if let Some(allocation) = live.get_mut(&address)
                            && allocation.uses.is_empty()
                        {
                            allocation.uses.push((index, Category::State));
                        }
                    }
                    if matches!(phases[phase], Phase::Update { .. }) {
                        in_update = Some(Vec::new());
                    }
                }
            }
        }
        live.into_values().for_each(|left| found.add(left, None));
        found
    }

    fn add(&mut self, allocation: Allocation, freed: Option<usize>) {
        let Allocation { size, born, uses } = allocation;
        let mut uses = uses.into_iter();
        let Some((_, first)) = uses.next() else {
            return;
        };
        let mut change = |at: Option<usize>, from, to| {
            let changes = match at {
                Some(index) => self.at.entry(index).or_default(),
                None => &mut self.before,
            };
            changes.push(Change { size, from, to });
        };
        change(
            born,
            born.map_or(Some(Category::Rest), |_| None),
            Some(first),
        );
        let mut current = first;
        for (index, purpose) in uses {
            change(Some(index), Some(current), Some(purpose));
            current = purpose;
        }
        if freed.is_some() {
            change(freed, Some(current), None);
        }
    }

    /// Returns the changes of this event.
    pub(super) fn changes(&self, index: usize, event: Event) -> impl Iterator<Item = Change> {
        let known = self.at.get(&index).map_or(&[][..], Vec::as_slice);
        let rest = Some(Category::Rest);
        let of_rest = match event {
            Event::Allocated { size, .. } => Some((size, None, rest)),
            Event::Freed { size, .. } => Some((size, rest, None)),
            _ => None,
        };
        let of_rest = of_rest.filter(|_| known.is_empty());
        let of_rest = of_rest.map(|(size, from, to)| Change { size, from, to });
        known.iter().copied().chain(of_rest)
    }
}
