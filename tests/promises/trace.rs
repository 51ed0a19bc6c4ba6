//! One plain step, for which `.ci/trace` lists the functions of the crate that it calls.

use backburn::optim::AdamWConfig;

use crate::common::*;

fn step(fused: &mut FusedOptimizer<Vec<Linear>>, x: &Tensor<2>) {
    fused.step_ok(1e-3, |layers| {
        let layers = layers.iter();
        let x = layers.fold(x.clone(), |x, layer| layer.forward(x).tanh());
        x.powi_scalar(2).mean()
    });
}

/// Runs the step. `.ci/trace` finds this function by its name.
#[inline(never)]
fn one_plain_step(fused: &mut FusedOptimizer<Vec<Linear>>, x: &Tensor<2>) {
    step(fused, x);
}

#[test]
fn plain_step_updates_in_place() {
    let device = Device::flex().autodiff();
    let layers = (0..3).map(|_| LinearConfig::new(8, 8).init(&device));
    let mut fused = FusedOptimizer::new_ok(layers.collect(), AdamWConfig::new().init());
    let x = Tensor::random([4, 8], Distribution::Default, &device);
    // The first makes the states.
    step(&mut fused, &x);
    one_plain_step(&mut fused, &x);
    assert_eq!(fused.last_step().updated, 6);
    assert_eq!(fused.last_step().copied, Some(0));
}
