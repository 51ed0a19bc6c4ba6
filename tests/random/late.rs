//! On devices that would have to be waited for, both passes of a step are compared with the next.

use std::sync::atomic::{AtomicUsize, Ordering};

use backburn::{FusedConfig, FusedError, FusedOptimizer, GlobalNormClippingConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Distribution, Tensor};

use crate::{Model, compare, on_wgpu};

fn a_disturbed_step_of_exact_clipping_ends_the_next_one(device: &Device) {
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    let mut fused = FusedOptimizer::new(Model::init(device), SgdConfig::new().init())
        .with_config(FusedConfig::new().with_clipping(Some(GlobalNormClippingConfig::Exact(0.01))));
    let mut step = |disturbed_pass: usize| {
        let pass = AtomicUsize::new(0);
        let stepped = fused.try_step_repeatable(0.1, |model| {
            if pass.fetch_add(1, Ordering::Relaxed) == disturbed_pass {
                // As another thread would.
                Tensor::<1>::random([3], Distribution::Default, device);
            }
            model.loss(x.clone())
        });
        (stepped.map(drop), compare::weights(&fused.model()))
    };
    let (stepped, _) = step(usize::MAX);
    stepped.unwrap();
    let (stepped, disturbed) = step(1);
    stepped.unwrap();
    let (stepped, after) = step(usize::MAX);
    let error = stepped.unwrap_err();
    assert!(
        matches!(&error, FusedError::RandomNumbers { place, .. } if place.contains("step before")),
        "{error}"
    );
    assert!(after == disturbed, "the step that says so updates nothing");
    let (stepped, after) = step(usize::MAX);
    stepped.unwrap();
    assert!(after != disturbed);
}

#[test]
fn a_disturbed_step_of_exact_clipping_ends_the_next_one_on_wgpu() {
    on_wgpu(a_disturbed_step_of_exact_clipping_ends_the_next_one);
}
