//! One plain step, for which `.ci/trace` lists the functions of the crate that it calls.

use backburn::optim::AdamWConfig;

use crate::common::*;

fn step(fused: &mut FusedOptimizer<Vec<Linear>>, x: &Tensor<2>) {
    fused
        .step(1e-3, |layers| loss_of_layers(layers, false, x.clone()))
        .unwrap();
}

/// Runs the step. `.ci/trace` finds this function by its name.
#[inline(never)]
fn one_plain_step(fused: &mut FusedOptimizer<Vec<Linear>>, x: &Tensor<2>) {
    step(fused, x);
}

#[test]
fn plain_step_updates_in_place() {
    let device = Device::flex().autodiff();
    let mut fused = FusedOptimizer::new(linears(3, 8, &device), AdamWConfig::new().init()).unwrap();
    let x = Tensor::random([4, 8], Distribution::Default, &device);
    // The first makes the states.
    step(&mut fused, &x);
    one_plain_step(&mut fused, &x);
    assert_eq!(fused.last_step().updated, 6);
    assert_eq!(fused.last_step().copied, Some(0));
}
