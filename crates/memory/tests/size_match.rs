//! CubeCL is configured once per process, so this test has its own.

use backburn_memory::{MemoryError, match_pool_sizes};
use burn::tensor::{Device, Tensor};

#[test]
fn match_pool_sizes_works_once_before_first_use() {
    match_pool_sizes().unwrap();
    let device = Device::wgpu(Default::default());
    let used = Tensor::<1>::ones([4], &device).sum().into_scalar::<f32>();
    assert_eq!(used, 4.0);
    let error = match_pool_sizes().unwrap_err();
    assert!(matches!(error, MemoryError::AlreadyConfigured));
    assert!(error.to_string().contains("before any device is used"));
}
