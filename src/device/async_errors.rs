use std::sync::Arc;

use backburn_base::{caught::catch_message, is_cubecl};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Device, Tensor};
use burn_cubecl::tensor::CubeTensor;
use parking_lot::Mutex;

use crate::error::FusedError;

/// A check of the kernels that write some tensors. It waits until the device's thread has launched them, not until they have run,
/// because the launch reports the error. Tensors on CPU backends are skipped.
#[derive(Debug, Default)]
pub(crate) struct AsyncErrors {
    devices: Vec<DeviceTensors>,
}

/// The tensors to check on one device.
#[derive(Debug)]
struct DeviceTensors {
    device: Device,
    paths: Vec<String>,
    launched: Launched,
}

/// The tensors whose preceding operations were launched, each with its index. A tensor whose operation can't be launched is missing.
#[derive(Clone, Debug, Default)]
struct Launched(Arc<Mutex<Vec<(usize, CubeTensor)>>>);

impl AsyncErrors {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor of the parameter at `path`.
    pub(crate) fn add<const D: usize>(&mut self, path: &str, tensor: &Tensor<D>) {
        let device = tensor.device();
        if !is_cubecl(&device) {
            return;
        }
        let known = self.devices.iter().position(|known| known.device == device);
        let index = known.unwrap_or_else(|| {
            self.devices.push(DeviceTensors {
                device,
                paths: Vec::new(),
                launched: Launched::default(),
            });
            self.devices.len() - 1
        });
        let of_device = &mut self.devices[index];
        let (launched, place) = (of_device.launched.clone(), of_device.paths.len());
        Dispatch::written(tensor.clone().into_dispatch(), launched, place);
        of_device.paths.push(path.to_string());
    }

    /// Returns an error that names the first parameter that was not computed.
    pub(crate) fn finish(self) -> Result<(), FusedError> {
        self.devices.into_iter().try_for_each(DeviceTensors::finish)
    }
}

impl DeviceTensors {
    fn finish(self) -> Result<(), FusedError> {
        let fault = |place: usize, reason| FusedError::NotComputed {
            path: self.paths[place].clone(),
            reason,
        };
        // Launches the operations that `fusion` has queued. (A flush could wait for the device.)
        let handed_over = catch_message(|| self.device.memory_pool_usage());
        let launched = std::mem::take(&mut *self.launched.0.lock());
        let is_missing = |place: &usize| launched.iter().all(|(launched, _)| launched != place);
        if let Some(place) = (0..self.paths.len()).find(is_missing) {
            let panic = handed_over.err();
            let reason = || "an operation that it depends on has failed".to_string();
            return Err(fault(place, panic.unwrap_or_else(reason)));
        }
        // Reads all at once, and one after the other only after an error, to find the parameter.
        let all = launched.iter().map(|(_, tensor)| &tensor.handle);
        if launched[0].1.client.check(all).is_ok() {
            return Ok(());
        }
        launched.iter().try_for_each(|(place, tensor)| {
            let written = tensor.client.check([&tensor.handle]);
            written.map_err(|error| fault(*place, error.to_string()))
        })
    }
}

/// The check as a backend operation, which runs in order with all others.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
trait AsyncErrorBackend: Backend {
    /// Returns `value`, and records its tensor in `launched`.
    #[fusion(dtype = value, shape = value)]
    fn written(value: FloatTensor<Self>, launched: Launched, place: usize) -> FloatTensor<Self>;
}

impl AsyncErrorBackend for burn_cubecl::CubeBackend {
    fn written(value: FloatTensor<Self>, launched: Launched, place: usize) -> FloatTensor<Self> {
        launched.0.lock().push((place, value.clone()));
        value
    }
}
