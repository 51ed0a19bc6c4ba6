//! Data parallel training on two devices. Each computes half of the batch, and stores and updates half of the parameters.
//!
//! ```sh
//! cargo run --release --example two_devices
//! ```

use backburn::optim::AdamWConfig;
use backburn::{FusedConfig, FusedError, FusedReplicas, Ownership, Sharding};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};

pub fn main() -> Result<(), FusedError> {
    let devices = [Device::flex(), Device::flex()]; // `Device::cuda(0)` and `Device::cuda(1)`, say
    let ranks = devices.len() as f32;
    let first = devices[0].clone().autodiff();
    let layers: Vec<Linear> = (0..4)
        .map(|_| LinearConfig::new(64, 64).init(&first))
        .collect();
    let config = FusedConfig::new()
        .with_sharding(Sharding::Full)
        .with_ownership(Ownership::BySize);
    let mut fused = FusedReplicas::new(layers, AdamWConfig::new().init(), devices.clone())?
        .with_config(config)?;
    for step in 1..=100 {
        let batches = devices
            .clone()
            .map(|device| Tensor::<2>::random([16, 64], Distribution::Default, &device.autodiff()));
        // Gradients of all devices are summed, so a loss divided by their number is the mean over the batch.
        let losses = fused.step(1e-3, batches, move |layers: &Vec<Linear>, x: Tensor<2>| {
            let y = layers
                .iter()
                .fold(x.clone(), |x, layer| layer.forward(x).tanh());
            (y - x * 0.5).square().mean() / ranks
        })?;
        if step % 25 == 0 {
            let losses = losses.into_iter().map(Tensor::into_scalar::<f32>);
            println!("step {step}: loss {:.5}", losses.sum::<f32>());
        }
    }
    Ok(())
}
