use burn::tensor::{Device, Tensor};
use parking_lot::Mutex;

use crate::device::{caught, hand_over, moved};

/// Carries tensors from rank to rank: everything that travels between the devices of a group.
///
/// One at a time: transfers in both directions at once can block each other on some backends.
#[derive(Debug, Default)]
pub(super) struct Wire(Mutex<()>);

impl Wire {
    /// `tensor`, which has no autodiff, on `device`, or what the device says.
    pub(super) fn carry<const D: usize>(
        &self,
        tensor: Tensor<D>,
        device: &Device,
    ) -> Result<Tensor<D>, String> {
        if tensor.device() == *device {
            return Ok(tensor);
        }
        let _one = self.0.lock();
        caught(|| {
            let carried = moved(tensor, device);
            // Another thread may be the one that computes with it.
            hand_over(device);
            carried
        })
    }
}
