//! The buffers for matrix products that threads keep.

use burn::tensor::{Device, Tensor};

/// Multiplies on each thread: its first product allocates a buffer, which would count in the first row of a table.
pub fn multiply_on_all_threads() {
    let multiply = || {
        let x = Tensor::<2>::ones([64, 64], &Device::flex());
        drop(x.clone().matmul(x).into_data());
    };
    rayon::broadcast(|_| multiply());
    multiply();
}
