use burn::tensor::{Device, Distribution, Tensor};

/// The same random numbers for two passes.
///
/// Burn's generators can be seeded, not read: the seed is drawn from the generator itself, so a
/// seeded program stays reproducible.
pub(crate) struct Replay {
    seeds: Vec<(Device, u64)>,
}

impl Replay {
    pub(crate) fn new(devices: Vec<Device>) -> Self {
        let seeds = devices.into_iter().map(|device| {
            let device = device.inner();
            let seed = draw_seed(&device);
            (device, seed)
        });
        Self {
            seeds: seeds.collect(),
        }
    }

    /// From here on the same random numbers come again.
    pub(crate) fn start(&self) {
        for (device, seed) in &self.seeds {
            device.seed(*seed);
        }
    }
}

/// A seed from the generator of `device`, which waits for it.
pub(crate) fn draw_seed(device: &Device) -> u64 {
    let random = Tensor::<1>::random([4], Distribution::Uniform(0.0, 65536.0), device);
    let digits = random.into_data();
    let digits = digits.iter::<f64>().map(|digit| digit as u64);
    digits.fold(0, |seed, digit| seed << 16 | digit & 0xffff)
}

/// Seeds the generators of `devices`.
pub(crate) fn seed(devices: &[Device], seed: u64) {
    devices.iter().for_each(|device| device.seed(seed));
}

/// Random numbers of its own for a part of the program.
pub(crate) struct Stream {
    pub(crate) devices: Vec<Device>,
    pub(crate) seed: u64,
}

impl Stream {
    /// Does `work` with these numbers. After it come others, which do not depend on how many it drew.
    pub(crate) fn during<R>(&self, run: u64, work: impl FnOnce() -> R) -> R {
        seed(&self.devices, self.seed);
        let result = work();
        seed(&self.devices, mix(self.seed, run));
        result
    }
}

/// Another seed for every count: the finalizer of SplitMix64 (Steele et al., 2014).
pub(crate) fn mix(seed: u64, count: u64) -> u64 {
    let mut z = seed.wrapping_add(count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
