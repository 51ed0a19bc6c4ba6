//! Random numbers that come twice: in the two passes of a step, and in the two runs of a block.
//!
//! Burn's generators can be seeded, not read, and all threads of the process draw from them. So both
//! times begin with the same seed, and a number drawn at the end of each, the [`Witness`], tells
//! whether as many had been drawn before it: other threads may have taken some.

use burn::tensor::{DType, Device, Distribution, Tensor};

/// Random numbers of its own for a part of the program.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) devices: Vec<Device>,
    pub(crate) seed: u64,
}

impl Stream {
    /// Numbers on `devices` from a seed that their generator gives, so that a seeded program stays
    /// reproducible.
    pub(crate) fn drawn(devices: Vec<Device>) -> Self {
        let devices = distinct(devices);
        let seed = draw_seed(&devices.first().cloned().unwrap_or_default());
        Self { devices, seed }
    }

    /// From here on these numbers come.
    pub(crate) fn start(&self) {
        seed(&self.devices, self.seed);
    }

    /// Does `work` with these numbers, and says where they ended. After it come others, which do not depend
    /// on how many it drew.
    pub(crate) fn during<R>(&self, run: u64, work: impl FnOnce() -> R) -> (R, Witness) {
        self.start();
        let result = work();
        let witness = self.witness();
        seed(&self.devices, mix(self.seed, run));
        (result, witness)
    }

    /// Where the generators stand: a number is drawn from each.
    pub(crate) fn witness(&self) -> Witness {
        Witness(self.devices.iter().map(draw).collect())
    }

    /// What the witness is if nothing was drawn.
    pub(crate) fn untouched(&self) -> Witness {
        self.start();
        self.witness()
    }
}

/// Numbers that generators have given at one moment, or several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Witness(Vec<Tensor<1>>);

impl Witness {
    /// Adds those of a later moment.
    pub(crate) fn add(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// Whether the generators stood at the same places; waits for the device.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        let read = |numbers: &Tensor<1>| numbers.to_data().iter::<f64>().collect::<Vec<_>>();
        let mut pairs = self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && pairs.all(|(a, b)| read(a) == read(b))
    }
}

/// A number that no two places of a generator share: four draws of 16 bits.
fn draw(device: &Device) -> Tensor<1> {
    Tensor::random(
        [4],
        Distribution::Uniform(0.0, 65536.0),
        (device, DType::F32),
    )
}

/// A seed from the generator of `device`, which waits for it.
pub(crate) fn draw_seed(device: &Device) -> u64 {
    let digits = draw(device).into_data();
    let digits = digits.iter::<f64>().map(|digit| digit as u64);
    digits.fold(0, |seed, digit| seed << 16 | digit & 0xffff)
}

/// Seeds the generators of `devices`.
pub(crate) fn seed(devices: &[Device], seed: u64) {
    devices.iter().for_each(|device| device.seed(seed));
}

/// The devices without autodiff, each once.
pub(crate) fn distinct(devices: Vec<Device>) -> Vec<Device> {
    let mut found = Vec::new();
    for device in devices.into_iter().map(Device::inner) {
        if !found.contains(&device) {
            found.push(device);
        }
    }
    found
}

/// Another seed for every count: the finalizer of SplitMix64 (Steele et al., 2014).
pub(crate) fn mix(seed: u64, count: u64) -> u64 {
    let mut z = seed.wrapping_add(count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
