//! Tests of random numbers in their own process, one at a time, because all threads share the generator of a backend.

#[path = "../common/mod.rs"]
mod common;
mod disturbed;
mod fidelity;
mod side_by_side;

use std::sync::{Arc, Mutex};

use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};

use crate::common::*;

type Last = Arc<Mutex<Vec<f32>>>;

fn keep(last: &Last) -> impl GradientHook {
    let last = last.clone();
    hook(move |it| {
        *last.lock().unwrap() = it.elements();
        Answer::Use
    })
}

#[derive(Module, Debug)]
struct Model {
    input: Linear,
    dropout: Dropout,
    encoder: TransformerEncoder,
    output: Linear,
}

impl Model {
    fn init(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(3, 8).init(device),
            dropout: DropoutConfig::new(0.3).init(),
            encoder: TransformerEncoderConfig::new(8, 16, 2, 2).init(device),
            output: LinearConfig::new(8, 2).init(device),
        }
    }

    fn loss(&self, x: Tensor<3>) -> Tensor<1> {
        let x = self.dropout.forward(self.input.forward(x));
        let x = self.encoder.forward(TransformerEncoderInput::new(x));
        self.output.forward(x).powi_scalar(2).mean()
    }
}

/// The global norm of the difference of two models.
fn distance(before: &Model, after: &Model) -> f64 {
    let pairs = weights(before).into_iter().zip(weights(after));
    let squares = pairs.map(|((_, before), (_, after))| {
        let pairs = before.iter::<f64>().zip(after.iter::<f64>());
        pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>()
    });
    squares.sum::<f64>().sqrt()
}

static ALONE: Mutex<()> = Mutex::new(());

#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn on_cpu(test: impl Fn(&Device)) {
    let _alone = ALONE.lock();
    test(&Device::flex().autodiff());
    test(&Device::ndarray().autodiff());
}

#[cfg(feature = "wgpu")]
fn on_wgpu(test: impl Fn(&Device)) {
    let _alone = ALONE.lock();
    test(&Device::wgpu(Default::default()).autodiff());
}

fn on_every_backend(test: impl Fn(&Device)) {
    on_cpu(&test);
    #[cfg(feature = "wgpu")]
    on_wgpu(test);
}
