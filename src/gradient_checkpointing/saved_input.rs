//! Inputs that wait for the second run, in the memory of the device or of the host.

use std::sync::Arc;

use burn::tensor::TensorData;

use super::activations::Activations;
use crate::device::{host, of_data};
use crate::error::FusedError;
use crate::offload::{ActivationOffload, OffloadedTensors};

/// The input of a block between its runs, without autodiff.
pub(super) struct SavedInput<X> {
    /// The input, with placeholders for what is on the host.
    input: X,
    on_host: Option<OnHost>,
}

/// What is on the host.
struct OnHost {
    /// Whether it is there, for every float tensor of the input.
    which: Vec<bool>,
    saved: Arc<OffloadedTensors>,
    /// Among what the pass has saved.
    all: Arc<ActivationOffload>,
}

impl<X: Activations> SavedInput<X> {
    /// Keeps `input`; what has memory of its own in `on_host`, if there is that.
    pub(super) fn new(input: X, on_host: Option<&Arc<ActivationOffload>>) -> Self {
        let Some(all) = on_host else {
            let on_host = None;
            return Self { input, on_host };
        };
        let (mut which, mut offloaded) = (Vec::new(), Vec::new());
        let input = input.map_floats(&mut |tensor| {
            let device = tensor.device();
            let leaves = all.is_offloadable(&device);
            which.push(leaves);
            if !leaves {
                return tensor;
            }
            let one = TensorData::zeros::<f32, _>(vec![1; tensor.shape().num_dims()]);
            offloaded.push(tensor);
            of_data(one, &host(&device))
        });
        let on_host = (!offloaded.is_empty()).then(|| OnHost {
            which,
            saved: all.save(offloaded),
            all: all.clone(),
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
        let (mut which, mut back) = (which.into_iter(), back.into_iter());
        Ok(self.input.map_floats(&mut |tensor| match which.next() {
            Some(true) => back.next().expect("all that left is back"),
            _ => tensor,
        }))
    }
}
