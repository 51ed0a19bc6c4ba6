use std::sync::Arc;

use backburn_base::{host, of_data};
use burn::tensor::TensorData;

use super::activations::Activations;
use crate::error::FusedError;
use crate::offload::{ActivationOffload, OffloadedTensors};

/// The input of a block between its runs, without autodiff, in the memory of the device or of the host.
pub(super) struct SavedInput<X> {
    /// The input, with placeholders for offloaded tensors.
    input: X,
    on_host: Option<OnHost>,
}

/// The offloaded tensors of an input.
struct OnHost {
    /// `true` for each float tensor of the input that is offloaded.
    is_on_host: Vec<bool>,
    saved: Arc<OffloadedTensors>,
    /// All offloaded activations of the pass.
    store: Arc<ActivationOffload>,
}

impl<X: Activations> SavedInput<X> {
    /// Saves `input`. With `on_host`, tensors on devices with their own memory are offloaded.
    pub(super) fn new(input: X, on_host: Option<&Arc<ActivationOffload>>) -> Self {
        let Some(store) = on_host else {
            let on_host = None;
            return Self { input, on_host };
        };
        let (mut is_on_host, mut offloaded) = (Vec::new(), Vec::new());
        let input = input.map_floats(&mut |tensor| {
            let device = tensor.device();
            let is_offloadable = store.transfers.has_own_memory(&device);
            is_on_host.push(is_offloadable);
            if !is_offloadable {
                return tensor;
            }
            let one = TensorData::zeros::<f32, _>(vec![1; tensor.shape().num_dims()]);
            offloaded.push(tensor);
            of_data(one, &host(&device))
        });
        let on_host = (!offloaded.is_empty()).then(|| OnHost {
            is_on_host,
            saved: store.save(offloaded),
            store: store.clone(),
        });
        Self { input, on_host }
    }

    /// Returns the input, on its original devices. `name` is that of the block, for the error.
    pub(super) fn take(self, name: &str) -> Result<X, FusedError> {
        let Some(OnHost {
            is_on_host,
            saved,
            store,
        }) = self.on_host
        else {
            return Ok(self.input);
        };
        let bytes = saved.bytes();
        let back = store.take(saved).map_err(|reason| FusedError::Offload {
            reason: format!(
                "the input of the recomputed block {name}, {bytes} bytes, was lost in its transfer to or from the host: {reason}. Make \
                the batch or the blocks smaller, or remove `GradientCheckpointingConfig::offload_inputs`. The parameters of this \
                block and of earlier blocks are unchanged"
            ),
        })?;
        let (mut is_on_host, mut back) = (is_on_host.into_iter(), back.into_iter());
        Ok(self
            .input
            .map_floats(&mut |tensor| match is_on_host.next() {
                Some(true) => back.next().expect("every offloaded tensor is fetched"),
                _ => tensor,
            }))
    }
}
