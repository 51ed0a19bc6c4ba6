//! Fine-tuning with LoRA. Trains adapters on frozen layers and merges them into the layers at the end.
//!
//! ```sh
//! cargo run --release --example lora
//! ```

use backburn::optim::AdamWConfig;
use backburn::{FusedError, FusedOptimizer, gradient_checkpointing};
use burn::module::{Lora, Module};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};

/// Runs the layers as checkpointed blocks: a frozen layer keeps no activations for the backward pass.
fn forward(layers: &[Linear], x: Tensor<2>) -> Tensor<2> {
    let block = |layer: &Linear, x| layer.forward(x).tanh();
    let layers = layers.iter();
    layers.fold(x, |x, layer| gradient_checkpointing(layer, x, block))
}

pub fn main() -> Result<(), FusedError> {
    let device = Device::flex().autodiff();
    // In practice, a model whose weights come from a file.
    let layers: Vec<Linear> = (0..4)
        .map(|_| LinearConfig::new(64, 64).init(&device))
        .collect();
    let adapted = layers.apply_lora(Lora::new(4, 8.0));

    let mut fused = FusedOptimizer::new(adapted, AdamWConfig::new().init())?;
    println!(
        "{} tensors are trained, {} are frozen",
        fused.num_released(),
        fused.num_frozen()
    );
    for step in 1..=200 {
        let x = Tensor::<2>::random([32, 64], Distribution::Default, &device);
        let loss = fused.step(1e-3, |layers: &Vec<Linear>| {
            (forward(layers, x.clone()) - x * 0.5).square().mean()
        })?;
        if step % 50 == 0 {
            println!("step {step}: loss {:.5}", loss.into_scalar::<f32>());
        }
    }
    let merged: Vec<Linear> = fused.model().materialize(); // ordinary layers, to save
    println!("{} parameters in all", merged.num_params());
    Ok(())
}
