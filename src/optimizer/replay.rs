use burn::tensor::{Device, Distribution, Tensor};

/// The same random numbers for two passes.
///
/// Burn's generators can be seeded, not read: the seed is drawn from the generator itself, so a
/// seeded program stays reproducible.
pub(super) struct Replay {
    seeds: Vec<(Device, u64)>,
}

impl Replay {
    pub(super) fn new(devices: Vec<Device>) -> Self {
        let seeds = devices.into_iter().map(|device| {
            let device = device.inner();
            let random = Tensor::<1>::random([4], Distribution::Uniform(0.0, 65536.0), &device);
            let random = random.into_data();
            let digits = random.iter::<f64>().map(|digit| digit as u64);
            (
                device,
                digits.fold(0, |seed, digit| seed << 16 | digit & 0xffff),
            )
        });
        Self {
            seeds: seeds.collect(),
        }
    }

    /// From here on the same random numbers come again.
    pub(super) fn start(&self) {
        for (device, seed) in &self.seeds {
            device.seed(*seed);
        }
    }
}
