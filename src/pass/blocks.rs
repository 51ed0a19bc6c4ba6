use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use burn::tensor::Device;
use parking_lot::Mutex;

use super::counted::Counted;
use crate::random::{self, StepSeeds, mix};

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
    pub(crate) choice: BlockChoice,
    /// The number of blocks so far that are in no other.
    called: AtomicUsize,
    /// Blocks whose first run is under way, and those that have yet to run a second time.
    running: AtomicUsize,
    waiting: AtomicUsize,
    /// Whether tensors got a gradient of zeros, since the block that they went into did not use them.
    unused_inputs: AtomicBool,
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
    pub(super) fn new(choice: BlockChoice, seeds: Arc<StepSeeds>, seed: Option<u64>) -> Self {
        Self {
            choice,
            called: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            unused_inputs: AtomicBool::new(false),
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

    /// Whether a block runs without recording, on whichever thread.
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// A block waits for its second run.
    pub(crate) fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// A block has run for the second time.
    pub(crate) fn done(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether code of the user is still to run in this pass.
    pub(crate) fn are_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// A block has not used a tensor that went into it, which gets a gradient of zeros for that.
    pub(crate) fn leave_unused(&self) {
        self.unused_inputs.store(true, Ordering::Relaxed);
    }

    /// Whether a gradient of zeros may stand for none.
    pub(crate) fn have_unused_inputs(&self) -> bool {
        self.unused_inputs.load(Ordering::Relaxed)
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

    /// What the generators give next does not depend on which blocks ran twice.
    pub(super) fn end(&self) {
        let random = self.random.lock();
        if let Some((seed, _)) = random.seed {
            random::seed(&random.devices, mix(seed, u64::MAX));
        }
    }
}
