//! Tests of random numbers in their own process, one at a time, because all threads share the generator of a backend.

#[path = "../common/mod.rs"]
mod common;
mod disturbed;
mod fidelity;
mod mixtures;
mod offload;
mod pools;
mod side_by_side;
mod threads;

use std::sync::{Arc, Mutex};

use backburn::memory::RecordingAllocator;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};

use crate::common::*;

/// Trainings that are planned need it.
#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();

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

type Dropping = (Param<Tensor<1>>, Dropout);

/// A weight, and dropout after it.
fn dropping(device: &Device) -> Dropping {
    let weight = Param::from_tensor(Tensor::<1>::ones([64], device));
    (weight, DropoutConfig::new(0.5).init())
}

static ALONE: Mutex<()> = Mutex::new(());
