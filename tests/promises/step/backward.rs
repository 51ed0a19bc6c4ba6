//! A step whose closure runs the backward pass itself has the results of stock Burn.

use crate::common::*;

const RATE: f64 = 1e-2;

fn init(device: &Device) -> Stack {
    Stack::init(3, 4, device)
}

/// The gradient of `x`, and those of the model. In stock Burn the blocks are plain calls.
fn gradients(model: &Stack, x: &Tensor<2>, scaled: bool) -> (TensorData, GradientsParams) {
    let x = x.clone().require_grad();
    let loss = model.loss_in_blocks(x.clone());
    let loss = if scaled { scale_loss(loss) } else { loss };
    let gradients = loss.backward();
    let of_input = x.grad(&gradients).expect("the loss depends on the input");
    let of_input = of_input.into_data();
    // Copied immediately: on wgpu the data would contain later in-place writes.
    let of_input = TensorData::new(of_input.iter::<f32>().collect(), of_input.shape());
    (of_input, GradientsParams::from_grads(gradients, model))
}

fn xs(device: &Device) -> Vec<Tensor<2>> {
    randoms(3, [5, 4], device)
}

fn gradient_of_input_matches_stock(device: &Device) {
    let adapted = || init(device).apply_lora(Lora::new(2, 4.0)).unfreeze();
    let plain = || init(device);
    let models: [&dyn Fn() -> Stack; 2] = [&plain, &adapted];
    for init in models {
        let initial = init();
        let xs = xs(device);
        let mut stock = copy(&initial, init);
        let mut optimizer = AdamWConfig::new().init();
        let mut fused =
            FusedOptimizer::new(copy(&initial, init), AdamWConfig::new().init()).unwrap();
        for x in &xs {
            let (expected, of_model) = gradients(&stock, x, false);
            stock = optimizer.step(RATE, stock, of_model);
            let found = fused
                .step_with_backward(RATE, |model| gradients(model, x, false))
                .unwrap();
            match is_exact(device) {
                true => assert_eq!(expected, found),
                false => expected.assert_approx_eq::<f32>(&found, Default::default()),
            }
        }
        assert_equal_weights(&stock, &fused.model());
        assert_changed(&initial, &fused.model(), |_| true);
    }
}

fn policies_with_backward_match_those_with_loss(device: &Device) {
    let initial = init(device);
    let start = || {
        let model = copy(&initial, || init(device));
        let scaling = LossScalingConfig::new().with_initial_scale(1024.0);
        let config = FusedConfig::exact(1e-2).with_loss_scaling(Some(scaling));
        FusedOptimizer::new(model, AdamWConfig::new().init())
            .unwrap()
            .with_config(config)
            .unwrap()
    };
    let (mut of_loss, mut with_backward) = (start(), start());
    for x in xs(device) {
        of_loss
            .step_repeatable(RATE, |model| model.loss_in_blocks(x.clone()))
            .unwrap();
        let found = with_backward
            .step_with_backward(RATE, |model| gradients(model, &x, true))
            .unwrap();
        if is_exact(device) {
            assert_eq!(of_loss.last_step(), with_backward.last_step());
        }
        let (plain, _) = gradients(&with_backward.model(), &x, true);
        let norm = |data: &TensorData| data.iter::<f64>().map(|g| g * g).sum::<f64>().sqrt();
        assert!(norm(&found) > 100.0 * norm(&plain), "it is scaled");
    }
    assert_equal_weights(&of_loss.model(), &with_backward.model());
}

fn backward_mistakes_change_nothing(device: &Device) {
    let initial = init(device);
    let x = xs(device).remove(0);
    let mut fused = FusedOptimizer::new(initial.clone(), AdamWConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::scaling(LossScalingConfig::new()))
        .unwrap();
    let result = fused.step_with_backward(RATE, |model| gradients(model, &x, false));
    assert_eq!(result.unwrap_err(), FusedError::LossNotScaled);
    assert_equal_weights(&initial, &fused.model());

    let mut fused = FusedOptimizer::new(initial.clone(), AdamWConfig::new().init()).unwrap();
    let nothing = |_: &Stack| ((), GradientsParams::new());
    let result = fused.step_with_backward(RATE, nothing);
    assert_matches!(
        result,
        Err(FusedError::LossWithoutParameters { parameters: 6 })
    );
    // Gradients of another model reach none of this one.
    fused.accumulate(|model| model.loss(x.clone())).unwrap();
    let result = fused.step_with_backward(RATE, |_| gradients(&init(device), &x, false));
    assert_matches!(result, Err(FusedError::LossWithoutParameters { .. }));
    assert_equal_weights(&initial, &fused.model());
}

/// A layer in a nested block is used once more after it, and its gradient has been applied when the block is recomputed.
#[test]
fn nested_block_with_applied_layer_matches_stock() {
    let device = &flex();
    let init = || {
        let layers = linears(1, 4, device)
            .remove(0)
            .apply_lora(Lora::new(2, 4.0));
        (LinearConfig::new(4, 4).init(device), layers.unfreeze())
    };
    type Layers = (Linear, Linear);
    fn forward((plain, adapted): &Layers, x: Tensor<2>) -> Tensor<2> {
        adapted.forward(plain.forward(x).tanh())
    }
    fn nested(layers: &Layers, x: Tensor<2>) -> Tensor<2> {
        gradient_checkpointing(layers, x, forward)
    }
    let (initial, x) = (init(), xs(device).remove(0));
    let gradients = |model: &Layers| {
        let y = gradient_checkpointing(model, x.clone(), nested);
        let loss = model.0.forward(y).square().mean();
        ((), GradientsParams::from_grads(loss.backward(), model))
    };
    let mut stock = copy(&initial, init);
    let mut optimizer = AdamWConfig::new().init();
    let mut fused = FusedOptimizer::new(copy(&initial, init), AdamWConfig::new().init()).unwrap();
    for _ in 0..3 {
        stock = optimizer.step(RATE, stock.clone(), gradients(&stock).1);
        fused.step_with_backward(RATE, gradients).unwrap();
    }
    assert_equal_weights(&stock, &fused.model());
}

fn panic_after_backward_leaves_weights_of_step(device: &Device) {
    let initial = init(device);
    let xs = xs(device);
    let train = |panics: bool| {
        let model = copy(&initial, || init(device));
        let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap();
        let mut step = |x: &Tensor<2>, panics: bool| {
            let train = |model: &Stack| {
                let gradients = gradients(model, x, false);
                assert!(!panics, "after the backward pass");
                gradients
            };
            drop(fused.step_with_backward(RATE, train).unwrap());
        };
        match panics {
            true => assert_says(&panic_of(|| step(&xs[0], true)), "after the backward pass"),
            false => step(&xs[0], false),
        }
        step(&xs[1], false);
        fused.model()
    };
    assert_equal_weights(&train(false), &train(true));
}

on_every_backend!(
    gradient_of_input_matches_stock,
    policies_with_backward_match_those_with_loss,
    backward_mistakes_change_nothing,
    panic_after_backward_leaves_weights_of_step,
);
