//! A gradient that is not finite ends a step that measures its norm.

use super::*;
use crate::backends::on_every_backend;

fn lagged_clipping_not_finite_gradient_is_an_error(device: &Device) {
    let initial = Squashed::init(device);
    let before = copy(&initial, || Squashed::init(device));
    let config = FusedConfig::lagged(1.0);
    let mut fused =
        FusedOptimizer::new_ok(initial, AdamConfig::new().init()).with_config_ok(config);
    let error = fused.step(LEARNING_RATE, |model| model.loss(infinite(device)));
    if !is_exact(device) {
        let Err(FusedError::UpdatedNotFinite { norm, path }) = error else {
            panic!("{error:?}")
        };
        assert!(!norm.is_finite() && path.starts_with("input."), "{path}");
        return;
    }
    let Err(FusedError::GradientNotFinite { path }) = error else {
        panic!("{error:?}")
    };
    assert!(path.starts_with("input."), "{path}");
    assert_changed(&before, &fused.model(), |path| path.starts_with("output"));

    // The step can be repeated with better data.
    let x = batches(device, 1).remove(0);
    fused.step_ok(LEARNING_RATE, |model| model.loss(x.clone()));
    assert_changed(&before, &fused.model(), |_| true);
}

on_every_backend!(lagged_clipping_not_finite_gradient_is_an_error);
