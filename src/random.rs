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
