//! A training that resumes from a checkpoint. The result equals that of an uninterrupted training bit for bit.
//!
//! ```sh
//! cargo run --release --example resume
//! ```

use std::error::Error;

use backburn::optim::AdamWConfig;
use backburn::{Checkpoint, FusedError, FusedOptimizer, Progress};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};

fn start(device: &Device) -> Result<FusedOptimizer<Linear>, FusedError> {
    let model = LinearConfig::new(1, 1).init(device);
    FusedOptimizer::new(model, AdamWConfig::new().init())
}

fn train(
    fused: &mut FusedOptimizer<Linear>,
    progress: &mut Progress<()>,
    until: u64,
    device: &Device,
) -> Result<(), FusedError> {
    while progress.step < until {
        let x = Tensor::<1, Int>::arange(0..16, device)
            .float()
            .unsqueeze_dim::<2>(1)
            / 16.0;
        fused.step(1e-2, |model| {
            (model.forward(x.clone()) - x * 2.0 - 1.0).square().mean()
        })?;
        progress.step += 1;
    }
    Ok(())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let folder = tempfile::tempdir()?;
    let checkpoint = Checkpoint::at(folder.path()); // a permanent folder in a real program

    let (mut fused, mut progress) = (start(&device)?, Progress::new(0));
    train(&mut fused, &mut progress, 100, &device)?;
    checkpoint.save(&fused, &progress)?;
    train(&mut fused, &mut progress, 200, &device)?; // not interrupted

    let mut resumed = start(&device)?;
    let mut progress = checkpoint.load(&mut resumed)?;
    println!("resumes after step {}", progress.step);
    train(&mut resumed, &mut progress, 200, &device)?;

    let [whole, resumed] = [fused, resumed].map(|fused| fused.model().weight.val().into_data());
    assert_eq!(whole, resumed);
    println!("both trainings end with the weight {whole}");
    Ok(())
}
