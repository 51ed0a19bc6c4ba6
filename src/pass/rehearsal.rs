use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::loss::Loss;
use crate::policy::{Squares, Unconfirmed};
use crate::random::{Stream, mix, of_rank};

/// What two passes of a step share: the first measures the gradients, and the second uses them.
#[derive(Debug)]
pub(crate) struct Rehearsal {
    /// The random numbers of both passes. Whether anybody has drawn since a pass began, they tell once.
    pub(crate) random: Stream,
    losses: Losses,
    /// Whether a gradient was used.
    used: AtomicBool,
}

/// The losses of both passes, where the closure returns them.
#[derive(Debug)]
enum Losses {
    /// Those of the first pass by rank, which the second gives to the bit.
    Read(Mutex<BTreeMap<usize, Vec<f64>>>),
    /// Those of both passes, on devices that would have to be waited for.
    Kept(Mutex<BTreeMap<usize, Vec<Squares>>>),
}

impl Rehearsal {
    /// Of passes with the random numbers of `random`; their results can be `read` without waiting for a device.
    pub(crate) fn new(random: Stream, read: bool) -> Self {
        let losses = match read {
            true => Losses::Read(Mutex::default()),
            false => Losses::Kept(Mutex::default()),
        };
        Self {
            random,
            losses,
            used: AtomicBool::new(false),
        }
    }

    /// The seed of the blocks of a rank in both passes, where none is drawn from the generator that both start.
    pub(super) fn block_seed(&self, rank: usize) -> Option<u64> {
        let kept = matches!(self.losses, Losses::Kept(_));
        kept.then(|| of_rank(mix(self.random.seed, 0), rank))
    }

    /// Whether the loss of this rank is that of the first pass, as far as that can be known now.
    pub(crate) fn agrees(&self, rank: usize, loss: &impl Loss) -> bool {
        let loss = loss.numbers();
        match &self.losses {
            Losses::Kept(losses) => {
                losses
                    .lock()
                    .entry(rank)
                    .or_default()
                    .push(Squares::of(&loss));
                true
            }
            Losses::Read(first) => {
                let loss: Vec<f64> = loss.into_data().iter::<f64>().collect();
                let mut first = first.lock();
                let first = first.entry(rank).or_insert_with(|| loss.clone());
                let equal = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits();
                first.iter().zip(&loss).all(equal)
            }
        }
    }

    /// What is left to be compared when a device is waited for anyway.
    pub(crate) fn unconfirmed(&self) -> Unconfirmed {
        let mut unconfirmed = Unconfirmed::default();
        if let Losses::Kept(losses) = &self.losses {
            for losses in losses.lock().values() {
                if let [first, second] = &losses[..] {
                    unconfirmed.push(first.clone(), second.clone());
                }
            }
        }
        unconfirmed
    }

    /// Whether the results of both passes can be read without waiting for a device.
    pub(crate) fn reads(&self) -> bool {
        matches!(self.losses, Losses::Read(_))
    }

    /// A gradient is used: from here on the step can't begin anew.
    pub(crate) fn use_gradient(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }
}
