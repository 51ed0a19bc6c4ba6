//! A GAN: a generator and a critic, each with its own optimizer, trained in turns.
//!
//! ```sh
//! cargo run --release --example two_optimizers
//! ```

use backburn::optim::AdamConfig;
use backburn::{FusedError, FusedOptimizer};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};

fn layers(input: usize, output: usize, device: &Device) -> Vec<Linear> {
    let layer = |input, output| LinearConfig::new(input, output).init(device);
    vec![layer(input, 32), layer(32, output)]
}

fn forward(layers: &[Linear], x: Tensor<2>) -> Tensor<2> {
    layers[1].forward(layers[0].forward(x).tanh())
}

pub fn main() -> Result<(), FusedError> {
    let device = Device::flex().autodiff();
    let optimizer = || AdamConfig::new().with_beta_1(0.5).init();
    let mut generator = FusedOptimizer::new(layers(4, 2, &device), optimizer())?;
    let mut critic = FusedOptimizer::new(layers(2, 1, &device), optimizer())?;
    for step in 1..=300 {
        let noise = Tensor::<2>::random([64, 4], Distribution::Default, &device);
        let real = Tensor::<2>::random([64, 2], Distribution::Normal(1.0, 0.2), &device);

        let fake = forward(&generator.valid(), noise.clone().inner()); // no graph: a constant for the critic
        let loss = critic.step(1e-3, |critic: &Vec<Linear>| {
            let fake = forward(critic, Tensor::from_inner(fake));
            (forward(critic, real) - 1.0).square().mean() + fake.square().mean()
        })?;
        let judge = critic.model().no_grad(); // gradients go through it to the generator
        let fooled = generator.step(1e-3, |generator: &Vec<Linear>| {
            (forward(&judge, forward(generator, noise)) - 1.0)
                .square()
                .mean()
        })?;
        drop(judge); // or the next step of the critic would have to copy what it still holds
        if step % 100 == 0 {
            let [loss, fooled] = [loss, fooled].map(Tensor::into_scalar::<f32>);
            println!("step {step}: critic {loss:.4}, generator {fooled:.4}");
        }
    }
    Ok(())
}
