//! Random numbers that come twice: in the two passes of a step, and in the two runs of a block.
//!
//! Burn's generators can be seeded, not read, and all threads of the process draw from them. Both times
//! begin with the same seed, but what another thread takes in between is missing: who needs the same
//! numbers has to compare what was computed with them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Distribution, Tensor};

use crate::device::is_cubecl;

/// Seeds that all come from one.
#[derive(Debug)]
pub(crate) struct Seeds {
    pub(crate) first: u64,
    taken: AtomicU64,
}

impl Seeds {
    pub(crate) fn from(first: u64) -> Self {
        let taken = AtomicU64::new(0);
        Self { first, taken }
    }

    pub(crate) fn next(&self) -> u64 {
        mix(self.first, self.taken.fetch_add(1, Ordering::Relaxed))
    }
}

/// The seeds of the steps of a training, from the generator of the device, so that a seeded program stays
/// reproducible.
///
/// A CubeCL device would have to be waited for. So it gives one number, for the first step that needs a seed,
/// and the seeds of all steps come from that.
#[derive(Debug, Default)]
pub(crate) struct StepSeeds(OnceLock<Seeds>);

impl StepSeeds {
    /// The seed of the next step.
    pub(crate) fn next(&self, device: &Device) -> u64 {
        if !is_cubecl(device) {
            return draw_seed(device);
        }
        let seeds = self.0.get_or_init(|| Seeds::from(draw_seed(device)));
        seeds.next()
    }
}

/// Random numbers of its own for a part of the program.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) devices: Vec<Device>,
    pub(crate) seed: u64,
}

impl Stream {
    /// Numbers on `devices` from a seed for their first.
    pub(crate) fn new(devices: Vec<Device>, seed: impl FnOnce(&Device) -> u64) -> Self {
        let devices = distinct(devices);
        let seed = seed(&devices.first().cloned().unwrap_or_default());
        Self { devices, seed }
    }

    /// Those of one of several ranks, on its device.
    pub(crate) fn of_rank(&self, rank: usize, device: &Device) -> Self {
        Self {
            devices: vec![device.clone()],
            seed: of_rank(self.seed, rank),
        }
    }

    /// From here on others come.
    pub(crate) fn end(&self) {
        seed(&self.devices, mix(self.seed, u64::MAX));
    }

    /// From here on these numbers come.
    pub(crate) fn start(&self) {
        seed(&self.devices, self.seed);
    }

    /// Does `work` with these numbers. After it come others, which do not depend on how many it drew.
    pub(crate) fn during<R>(&self, run: u64, work: impl FnOnce() -> R) -> R {
        self.start();
        let result = work();
        seed(&self.devices, mix(self.seed, run));
        result
    }

    /// Whether anybody has drawn since the numbers began; waits for the devices, and leaves others behind.
    pub(crate) fn is_touched(&self) -> bool {
        let draw = || self.devices.iter().map(draw_seed).collect::<Vec<_>>();
        let next = draw();
        // Twice, since another thread may draw just now, and by chance as many as the work did.
        (0..2).any(|_| {
            self.start();
            next != draw()
        })
    }

    /// The same, and whether anybody has drawn meanwhile, on whichever thread. Devices that would have to be
    /// waited for are not asked.
    pub(crate) fn during_noted<R>(&self, run: u64, work: impl FnOnce() -> R) -> (R, bool) {
        self.start();
        let result = work();
        let touched = !self.devices.iter().any(is_cubecl) && self.is_touched();
        seed(&self.devices, mix(self.seed, run));
        (result, touched)
    }
}

/// How long something that another thread has disturbed is tried again: a loader that fills its queue is done soon.
#[derive(Debug)]
pub(crate) struct Patience {
    begun: Instant,
    attempts: usize,
    pause: Duration,
}

impl Patience {
    /// Attempts there are in any case, however long they take.
    const ATTEMPTS: usize = 5;
    const TIME: Duration = Duration::from_secs(2);
    const LONGEST_PAUSE: Duration = Duration::from_millis(50);

    /// From the first attempt on.
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            attempts: 0,
            pause: Duration::ZERO,
        }
    }

    /// An attempt was disturbed: pauses before the next, if there is to be one.
    pub(crate) fn lasts(&mut self) -> bool {
        self.attempts += 1;
        if self.attempts >= Self::ATTEMPTS && self.begun.elapsed() > Self::TIME {
            return false;
        }
        std::thread::sleep(self.pause);
        let longer = (2 * self.pause).max(Duration::from_millis(1));
        self.pause = longer.min(Self::LONGEST_PAUSE);
        true
    }
}

/// Four draws of 16 bits.
fn draw(device: &Device) -> Tensor<1> {
    let range = Distribution::Uniform(0.0, 65536.0);
    Tensor::random([4], range, (device, DType::F32))
}

/// A seed from the generator of `device`, which waits for it.
fn draw_seed(device: &Device) -> u64 {
    let digits = draw(device).into_data();
    let digits = digits.iter::<f64>().map(|digit| digit as u64);
    digits.fold(0, |seed, digit| seed << 16 | digit & 0xffff)
}

/// Seeds the generators of `devices`.
pub(crate) fn seed(devices: &[Device], seed: u64) {
    devices.iter().for_each(|device| device.seed(seed));
}

/// The devices without autodiff, each once.
fn distinct(devices: Vec<Device>) -> Vec<Device> {
    let mut found = Vec::new();
    for device in devices.into_iter().map(Device::inner) {
        if !found.contains(&device) {
            found.push(device);
        }
    }
    found
}

/// The seed of one of several ranks; that of the first is that of one device alone.
pub(crate) fn of_rank(seed: u64, rank: usize) -> u64 {
    match rank {
        0 => seed,
        rank => mix(seed, u64::MAX - rank as u64),
    }
}

/// Another seed for every count: the finalizer of SplitMix64 (Steele et al., 2014).
pub(crate) fn mix(seed: u64, count: u64) -> u64 {
    let mut z = seed.wrapping_add(count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
