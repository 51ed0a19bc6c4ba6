//! Inputs that wait for the second run, in the memory of the device or of the host.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::activations::{Activations, FloatMap};
use crate::device::host;
use crate::error::FusedError;
use crate::offload::{Saved, SavedTensors};
use crate::parameters::AnyTensor;

/// The input of a block between its runs, without autodiff.
pub(super) struct KeptInput<X> {
    /// The input, with placeholders for what is on the host.
    input: X,
    on_host: Option<OnHost>,
}

/// What is on the host.
struct OnHost {
    /// Whether it is there, for every float tensor of the input.
    which: Vec<bool>,
    saved: Arc<Saved>,
    /// Among what the pass has saved.
    all: Arc<SavedTensors>,
}

impl<X: Activations> KeptInput<X> {
    /// Keeps `input`; what has memory of its own in `on_host`, if there is that.
    pub(super) fn new(input: X, on_host: Option<&Arc<SavedTensors>>) -> Self {
        let Some(on_host) = on_host else {
            let on_host = None;
            return Self { input, on_host };
        };
        let (which, leaving) = (Vec::new(), Vec::new());
        let mut out = Out {
            on_host,
            which,
            leaving,
        };
        let input = input.map_floats(&mut out);
        let Out { which, leaving, .. } = out;
        let on_host = (!leaving.is_empty()).then(|| OnHost {
            which,
            saved: on_host.save(leaving),
            all: on_host.clone(),
        });
        Self { input, on_host }
    }

    /// The input of the block of this name, where it was.
    pub(super) fn take(self, name: &str) -> Result<X, FusedError> {
        let Some(OnHost { which, saved, all }) = self.on_host else {
            return Ok(self.input);
        };
        let bytes = saved.bytes();
        let back = all.take(saved).map_err(|reason| FusedError::Offload {
            reason: format!(
                "the input of the recomputed block {name}, {bytes} bytes, was lost on its way to the host or back: {reason}. Make \
                 the batch or the blocks smaller, or leave out `GradientCheckpointingConfig::offload_inputs`. The parameters of the \
                 block and those before it are unchanged"
            ),
        })?;
        Ok(self.input.map_floats(&mut Back {
            which: which.into_iter(),
            back: back.into_iter(),
        }))
    }
}

/// Takes out what leaves.
struct Out<'a> {
    on_host: &'a SavedTensors,
    which: Vec<bool>,
    leaving: Vec<Tensor<1>>,
}

impl FloatMap for Out<'_> {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let device = tensor.device();
        let leaves = self.on_host.leaves(&device);
        self.which.push(leaves);
        if !leaves {
            return tensor;
        }
        self.leaving.push(AnyTensor::from(tensor).untyped());
        Tensor::zeros([1; D], &host(&device))
    }
}

/// Puts in what is back.
struct Back {
    which: std::vec::IntoIter<bool>,
    back: std::vec::IntoIter<Tensor<1>>,
}

impl FloatMap for Back {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let is_back = self.which.next().unwrap_or_default();
        let back = is_back.then(|| self.back.next()).flatten();
        back.map_or(tensor, |back| AnyTensor::from(back).of_rank())
    }
}
