//! Hooks are called in a fixed order, so that a training with a hook that draws random numbers is repeatable.

use super::*;

fn loss(layers: &[Linear], x: &Tensor<2>) -> Tensor<1> {
    loss_of_layers(layers, false, x.clone())
}

#[test]
fn hooks_waiting_gradients_follow_module_order() {
    let device = flex();
    let in_buffer = Some(GlobalNormClippingConfig::ExactInBuffer(1.0));
    // The layers that are accumulated, and those that the step reaches. Accumulated gradients come after those of the
    // pass.
    for (accumulated, stepped, clipping, first) in
        [(0, 4, in_buffer, 0), (4, 0, None, 0), (4, 1, None, 2)]
    {
        let model = linears(4, 6, &device);
        let expected: Vec<_> = weights(&model).into_iter().map(|(path, _)| path).collect();
        let noting = Noting::default();
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
            .unwrap()
            .with_config(FusedConfig::new().with_clipping(clipping))
            .unwrap()
            .with_hook(ParamGroup::all(), noting.clone());
        let x = &batches(&device, 1)[0];
        if accumulated > 0 {
            fused
                .accumulate(|model| loss(&model[..accumulated], x))
                .unwrap();
        }
        match stepped {
            0 => fused.step_accumulated(0.1).unwrap(),
            _ => drop(fused.step(0.1, |model| loss(&model[..stepped], x)).unwrap()),
        }
        let notes = noting.0.lock().unwrap();
        let called: Vec<_> = notes.iter().map(|(path, ..)| path.clone()).collect();
        assert_eq!(called.len(), expected.len());
        assert_eq!(called[first..], expected[first..]);
    }
}
