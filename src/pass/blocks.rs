use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::Device;
use parking_lot::Mutex;

use super::Learned;
use super::counted::Counted;
use super::course::Course;
use crate::random::{self, StepSeeds, mix};
use crate::tap::Litter;

/// What a step does with the blocks under gradient checkpointing.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockChoice {
    /// Whether a block keeps its activations, in the order of the calls.
    pub(crate) keep_activations: Vec<bool>,
    /// Whether inputs wait in the memory of the host.
    pub(crate) offload_inputs: bool,
}

/// The blocks of a pass that are under gradient checkpointing.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub(crate) choice: Arc<BlockChoice>,
    /// In which order they run, and what each reads.
    pub(crate) course: Mutex<Course>,
    /// The number of blocks so far that are in no other.
    called: AtomicUsize,
    /// Blocks whose first run is under way.
    running: AtomicUsize,
    /// Of their first runs.
    litter: Litter,
    pub(crate) learned: Arc<Learned>,
    /// Where the seed of this step comes from.
    seeds: Arc<StepSeeds>,
    random: Mutex<BlockRandom>,
}

/// The random numbers of the blocks.
#[derive(Debug, Default)]
struct BlockRandom {
    /// The seed that those of the blocks come from, and how many have.
    seed: Option<(u64, u64)>,
    /// The devices that blocks have drawn on.
    devices: Vec<Device>,
}

/// What becomes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is called with random numbers of its own, as if it ran twice.
    Keep,
    /// It runs twice. A block that is in no other has an index.
    RunTwice { index: Option<usize> },
}

impl Blocks {
    /// The blocks of a pass; `seed` is that of their random numbers, if it has to be this one.
    pub(super) fn new(
        choice: Arc<BlockChoice>,
        learned: Arc<Learned>,
        seeds: Arc<StepSeeds>,
        seed: Option<u64>,
    ) -> Self {
        Self {
            choice,
            course: Mutex::default(),
            called: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            litter: Litter::new(),
            learned,
            seeds,
            random: Mutex::new(BlockRandom {
                seed: seed.map(|seed| (seed, 0)),
                devices: Vec::new(),
            }),
        }
    }

    /// What becomes of the next block that is in no other.
    pub(crate) fn next(&self) -> Way {
        let index = self.called.fetch_add(1, Ordering::Relaxed);
        match self.choice.keep_activations.get(index) {
            Some(true) => Way::Keep,
            _ => Way::RunTwice { index: Some(index) },
        }
    }

    /// Does `run` as the first run of a block.
    pub(crate) fn first_run<R>(&self, run: impl FnOnce() -> R) -> R {
        let _counted = Counted::one_in(&self.running);
        run()
    }

    /// Lets autodiff let go of what first runs have left, if that is enough to be worth it.
    pub(crate) fn sweep(&self, device: &Device) {
        self.litter.sweep(device);
    }

    /// Whether a block runs without recording, on whichever thread.
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// A block has not used `what`, a tracked tensor that it has been given.
    pub(crate) fn tell_unused(&self, block: &str, what: &str) {
        if self.learned.is_new(format!("{block} {what}")) {
            log::warn!(
                "the recomputed block {block} does not use its {what}, or the loss does not use what the block makes of \
                 it. Its gradient is zero, where a plain call would give none; if there should be none, detach it before \
                 the block"
            );
        }
    }

    /// The seed of the next block that is in no other, which computes on `device`.
    pub(super) fn next_seed(&self, device: &Device) -> u64 {
        let mut random = self.random.lock();
        let (seed, taken) = random.seed.unwrap_or_else(|| (self.seeds.next(device), 0));
        random.seed = Some((seed, taken + 1));
        mix(seed, taken)
    }

    /// A block draws on these devices.
    pub(crate) fn draw_on(&self, devices: &[Device]) {
        let known = &mut self.random.lock().devices;
        for device in devices {
            if !known.contains(device) {
                known.push(device.clone());
            }
        }
    }

    /// Whether some have drawn, or may have.
    pub(super) fn have_drawn(&self) -> bool {
        !self.random.lock().devices.is_empty()
    }

    /// What the generators give next does not depend on which blocks ran twice.
    pub(super) fn end(&self) {
        let random = self.random.lock();
        if let Some((seed, _)) = random.seed {
            random::seed(&random.devices, mix(seed, u64::MAX));
        }
    }
}
