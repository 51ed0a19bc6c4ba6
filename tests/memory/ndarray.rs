//! On `ndarray`, where `expand` copies.

#![allow(deprecated)] // Burn 0.22 still ships ndarray.

use super::*;

#[test]
fn nothing_takes_a_parameters_size_on_ndarray_beside_parameters_and_state() {
    let _alone = ALONE.lock();
    let (depth, width) = (8, 128);
    let device = Device::ndarray().autodiff();
    let x = Tensor::<2>::random([4, width], Distribution::Default, &device);
    let parameters = 4 * Mlp::init(depth, width, &device).num_params();
    let multiple = |bytes: usize| bytes as f64 / parameters as f64;

    let before = BYTES.current_usage();
    let mut at_rest = 0;
    let fused = peak(|| {
        let model = Mlp::init(depth, width, &device);
        let mut fused = FusedOptimizer::new_ok(model, AdamConfig::new().init());
        for _ in 0..3 {
            fused.step_ok(1e-3, |model| model.loss(x.clone()));
        }
        at_rest = BYTES.current_usage() - before;
    });
    let [fused, at_rest] = [fused, at_rest].map(multiple);
    assert!(at_rest < 3.1, "{at_rest:.2} P at rest");
    // A stock loop takes 4.13.
    assert!(fused < 3.5, "{fused:.2} P");
}
