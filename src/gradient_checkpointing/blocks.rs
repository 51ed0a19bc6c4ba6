//! The blocks of the step under way on a thread.

use std::cell::RefCell;

use burn::optim::GradientsParams;
use burn::tensor::Device;

use super::GradientCheckpointingConfig;
use crate::pass::{self, Scope};
use crate::random::{self, Stream, draw_seed, mix};

/// What becomes of a block in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is called with random numbers of its own, as if it were recomputed.
    Keep,
    /// It runs twice. A block that is not within another has an index.
    RunTwice { index: Option<usize> },
}

struct Blocks {
    config: GradientCheckpointingConfig,
    /// The number of blocks so far.
    count: usize,
    /// Those that blocks have drawn random numbers on.
    devices: Vec<Device>,
    /// Of the parameters without a slot, from second runs.
    leaf_gradients: Vec<GradientsParams>,
}

thread_local! {
    static CURRENT: RefCell<Option<Blocks>> = const { RefCell::new(None) };
}

/// A step, which ends when this is dropped.
pub(crate) struct Entered {
    before: Option<Blocks>,
    _scope: pass::Entered,
}

/// A step begins, on this thread.
pub(crate) fn enter(config: GradientCheckpointingConfig) -> Entered {
    let blocks = Blocks {
        config,
        count: 0,
        devices: Vec::new(),
        leaf_gradients: Vec::new(),
    };
    Entered {
        before: CURRENT.replace(Some(blocks)),
        _scope: Scope::enter_step(),
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // What the generators give next does not depend on which blocks ran twice.
        if let Some(blocks) = CURRENT.replace(self.before.take())
            && let Some(seed) = Scope::seed()
        {
            random::seed(&blocks.devices, mix(seed, u64::MAX));
        }
    }
}

/// What becomes of the block that is called now; none if no step is under way on this thread.
pub(super) fn next() -> Option<Way> {
    with(Blocks::next)
}

/// Adds gradients that a second run has found.
pub(super) fn add_leaf_gradients(gradients: GradientsParams) {
    with(|blocks| blocks.leaf_gradients.push(gradients));
}

/// The gradients that second runs have found of parameters without a slot.
pub(crate) fn take_leaf_gradients() -> Vec<GradientsParams> {
    with(|blocks| std::mem::take(&mut blocks.leaf_gradients)).unwrap_or_default()
}

/// Whether inputs wait in the memory of the host.
pub(super) fn offload_inputs() -> bool {
    with(|blocks| blocks.config.offload_inputs).unwrap_or_default()
}

/// The random numbers of the block that is called now, which computes on `all` these devices.
pub(super) fn random(all: Vec<Device>) -> Stream {
    let mut devices = Vec::new();
    add(&mut devices, all.into_iter().map(Device::inner));
    let seed = Scope::next_seed(|| draw_seed(&devices.first().cloned().unwrap_or_default()));
    with(|blocks| add(&mut blocks.devices, devices.iter().cloned()));
    Stream { devices, seed }
}

fn with<R>(look: impl FnOnce(&mut Blocks) -> R) -> Option<R> {
    CURRENT.with_borrow_mut(|blocks| blocks.as_mut().map(look))
}

/// Adds the devices that are not there yet.
fn add(known: &mut Vec<Device>, devices: impl Iterator<Item = Device>) {
    for device in devices {
        if !known.contains(&device) {
            known.push(device);
        }
    }
}

impl Blocks {
    fn next(&mut self) -> Way {
        if Scope::is_in_block() {
            return Way::RunTwice { index: None };
        }
        let index = self.count;
        self.count += 1;
        match self.config.keep_activations.get(index) {
            Some(true) => Way::Keep,
            _ => Way::RunTwice { index: Some(index) },
        }
    }
}
