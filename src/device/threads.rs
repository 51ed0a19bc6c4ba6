use burn::tensor::{Device, Tensor};

use super::{is_cubecl, is_remote};

/// Has every thread that computes on `device`, if that is the processor, set up what it keeps for good: a buffer as large as a cache,
/// for products of matrices. Else one does so whenever it first gets such work, maybe in the middle of what is measured.
pub(crate) fn warm_threads(device: &Device) {
    if is_cubecl(device) || is_remote(device) {
        return;
    }
    let multiply = || {
        let x = Tensor::<2>::ones([64, 64], device);
        // One of both factors lies in the order in which it goes through the buffer.
        drop(x.clone().transpose().matmul(x.clone()));
        drop(x.clone().matmul(x.transpose()));
    };
    multiply();
    rayon::broadcast(|_| multiply());
}
