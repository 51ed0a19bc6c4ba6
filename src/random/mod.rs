//! Repeatable random numbers, for the two passes of a step and for the recomputation of a block. `pass::numbers` decides when a
//! step or a block seeds the generators, and holds the lock.
//!
//! # Invariants
//!
//! Burn's generators can be seeded but not read, and all threads of the process share them. Runs that must draw equal numbers
//! start with the same seed and hold a [lock](RngLock) until both have ended. Code that draws without the lock is detected by comparing results.

mod lock;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use backburn_base::{is_cubecl, read_with_timeout};
use burn::tensor::{DType, Device, Distribution, Tensor};

pub(crate) use lock::{GENERATORS, PROGRESS, RngLock, begin_unlocked, unlocked_steps};

/// A sequence of seeds derived from a first one.
#[derive(Debug)]
pub(crate) struct Seeds {
    pub(crate) first: u64,
    count: AtomicU64,
}

impl Seeds {
    pub(crate) fn from(first: u64) -> Self {
        let count = AtomicU64::new(0);
        Self { first, count }
    }

    pub(crate) fn next(&self) -> u64 {
        mix(self.first, self.count.fetch_add(1, Ordering::Relaxed))
    }
}

/// The seeds of the steps of a training, drawn from the device's generator, so that a seeded program is reproducible. On a CubeCL
/// device only the first is drawn, because reading a number waits for the device; the others are derived from it.
#[derive(Debug, Default)]
pub(crate) struct StepSeeds(OnceLock<Seeds>);

impl StepSeeds {
    /// Returns the seed of the next step.
    pub(crate) fn next(&self, device: &Device) -> u64 {
        if !is_cubecl(device) {
            return draw_seed(device);
        }
        let seeds = self.0.get_or_init(|| Seeds::from(draw_seed(device)));
        seeds.next()
    }
}

/// The kind of run after which a stream continues with other numbers. Its value is part of the next seed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    /// The forward pass of a block.
    Block = 1,
    /// The recomputation of a block.
    RecomputedBlock = 2,
    /// The forward pass outside of blocks.
    OutsideOfBlocks = 3,
}

/// A repeatable stream of random numbers on some devices.
#[derive(Clone, Debug)]
pub(crate) struct RandomStream {
    pub(crate) devices: Vec<Device>,
    pub(crate) seed: u64,
}

impl RandomStream {
    /// Creates a stream on `devices`; `seed` returns the seed, given the first device.
    pub(crate) fn new(devices: Vec<Device>, seed: impl FnOnce(&Device) -> u64) -> Self {
        let devices = distinct(devices);
        let seed = seed(&devices.first().cloned().unwrap_or_default());
        Self { devices, seed }
    }

    /// Seeds the devices with the start of this stream.
    pub(crate) fn start(&self) {
        seed(&self.devices, self.seed);
    }

    /// Continues with new numbers after `run`, independent of how many numbers it drew.
    pub(crate) fn advance(&mut self, run: Run) {
        self.seed = mix(self.seed, run as u64);
        self.start();
    }

    /// Returns `true` if numbers were drawn since the start of the stream. Waits for the devices and changes their generators.
    pub(crate) fn was_drawn(&self) -> bool {
        let draw = || self.devices.iter().map(draw_seed).collect::<Vec<_>>();
        let next = draw();
        // Compared twice, because another thread may draw at the same time, by chance the same amount of numbers as the
        // run.
        (0..2).any(|_| {
            self.start();
            next != draw()
        })
    }
}

/// Draws a seed of four numbers of 16 bits from the generator of `device`. Waits for the device.
fn draw_seed(device: &Device) -> u64 {
    let range = Distribution::Uniform(0.0, 65536.0);
    let digits = Tensor::<1>::random([4], range, (device, DType::F32));
    let digits = read_with_timeout(device, move || digits.into_data());
    let digits = digits.iter::<f64>().map(|digit| digit as u64);
    digits.fold(0, |seed, digit| seed << 16 | digit & 0xffff)
}

/// Returns a seed from the operating system, without Burn's generators.
pub(crate) fn system_seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// Seeds the generators of `devices`.
pub(crate) fn seed(devices: &[Device], seed: u64) {
    devices.iter().for_each(|device| device.seed(seed));
}

/// Returns the distinct devices without autodiff.
fn distinct(devices: Vec<Device>) -> Vec<Device> {
    let mut found = Vec::new();
    for device in devices.into_iter().map(Device::inner) {
        if !found.contains(&device) {
            found.push(device);
        }
    }
    found
}

/// Returns the seed of one of several ranks. Rank 0 has the seed of a single device.
pub(crate) fn seed_of_rank(seed: u64, rank: usize) -> u64 {
    match rank {
        0 => seed,
        rank => mix(seed, u64::MAX - rank as u64),
    }
}

/// Derives a seed for each count, with the finalizer of SplitMix64 (Steele et al., 2014).
pub(crate) fn mix(seed: u64, count: u64) -> u64 {
    let mut z = seed.wrapping_add(count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
