//! A custom training loop that fits a sine curve. Each step applies the optimizer in the backward pass.
//!
//! ```sh
//! cargo run --release --example custom_loop
//! ```

use backburn::optim::AdamWConfig;
use backburn::{FusedError, FusedOptimizer};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};

#[derive(Module, Debug)]
struct Network {
    hidden: Linear,
    output: Linear,
}

impl Network {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(self.hidden.forward(x).tanh())
    }
}

pub fn main() -> Result<(), FusedError> {
    let device = Device::flex().autodiff();
    let model = Network {
        hidden: LinearConfig::new(1, 64).init(&device),
        output: LinearConfig::new(64, 1).init(&device),
    };
    let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())?;
    for step in 1..=500 {
        let x = Tensor::<2>::random([64, 1], Distribution::Uniform(-3.0, 3.0), &device);
        let y = x.clone().sin();
        let loss = fused.step(1e-2, |model| (model.forward(x) - y).square().mean())?;
        if step % 100 == 0 {
            println!("step {step}: loss {:.5}", loss.into_scalar::<f32>());
        }
    }
    let x = Tensor::<2>::from_data([[1.5]], &device.inner());
    println!(
        "sin(1.5) is about {}",
        fused.valid().forward(x).into_scalar::<f32>()
    );
    Ok(())
}
