//! Hooks are called in one order, so that a hook that draws random numbers repeats a training.

use super::*;
use crate::common::*;

type Step = fn(&mut FusedOptimizer<Vec<Linear>>, &Tensor<2>);

fn loss(layers: &[Linear], x: &Tensor<2>) -> Tensor<1> {
    let layers = layers.iter();
    layers
        .fold(x.clone(), |x, layer| layer.forward(x).tanh())
        .mean()
}

fn one_step(fused: &mut FusedOptimizer<Vec<Linear>>, x: &Tensor<2>) {
    fused.step_ok(0.1, |model| loss(model, x));
}

fn accumulated(fused: &mut FusedOptimizer<Vec<Linear>>, x: &Tensor<2>) {
    fused.accumulate_ok(|model| loss(model, x));
    fused.step_accumulated_ok(0.1);
}

fn last_micro_batch_reaches_one_layer(fused: &mut FusedOptimizer<Vec<Linear>>, x: &Tensor<2>) {
    fused.accumulate_ok(|model| loss(model, x));
    fused.step_ok(0.1, |model| loss(&model[..1], x));
}

#[test]
fn hooks_waiting_gradients_follow_module_order() {
    let device = Device::flex().autodiff();
    let in_buffer = Some(GlobalNormClippingConfig::ExactInBuffer(1.0));
    // The gradients that wait come after those of the backward pass.
    let cases: [(Step, _, usize); 3] = [
        (one_step, in_buffer, 0),
        (accumulated, None, 0),
        (last_micro_batch_reaches_one_layer, None, 2),
    ];
    for (step, clipping, first) in cases {
        let layer = |_| LinearConfig::new(6, 6).init(&device);
        let model: Vec<Linear> = (0..4).map(layer).collect();
        let expected: Vec<_> = weights(&model).into_iter().map(|(path, _)| path).collect();
        let noting = Noting::default();
        let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init())
            .with_config_ok(FusedConfig::new().with_clipping(clipping))
            .with_hook(ParamGroup::all(), noting.clone());
        step(&mut fused, &batches(&device, 1)[0]);
        let notes = noting.0.lock().unwrap();
        let called: Vec<_> = notes.iter().map(|(path, ..)| path.clone()).collect();
        assert_eq!(called.len(), expected.len());
        assert_eq!(called[first..], expected[first..]);
    }
}
