use burn::tensor::{Device, Tensor};

use super::{is_cubecl, is_remote};

/// Makes every CPU thread that computes on `device` allocate its permanent buffer for matrix products, as large as a
/// cache. Otherwise each allocates it at its first such product, possibly during a measurement.
pub(crate) fn warm_threads(device: &Device) {
    if is_cubecl(device) || is_remote(device) {
        return;
    }
    let multiply = || {
        let x = Tensor::<2>::ones([64, 64], device);
        // One of both factors has the memory order of the buffer.
        drop(x.clone().transpose().matmul(x.clone()));
        drop(x.clone().matmul(x.transpose()));
    };
    multiply();
    rayon::broadcast(|_| multiply());
}
