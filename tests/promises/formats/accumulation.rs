//! Gradients in bf16 that are summed in f32.

use super::*;

/// The second layer receives no gradient from the last micro-batch of a group. The first layer is in a checkpointed
/// block.
fn loss(model: &Network, batches: &[Tensor<2>], micro_batch: usize) -> Tensor<1> {
    let x = batches[micro_batch % batches.len()].clone();
    let run = |layer: &Linear, x| layer.forward(x).tanh();
    let x = gradient_checkpointing(&model.first, x, run);
    match micro_batch % 4 {
        3 => x.powi_scalar(2).sum(),
        _ => model.second.forward(x).powi_scalar(2).sum(),
    }
}

fn assert_equals_sums_in_f32(init: impl Fn() -> Network, dtype: FloatDType, retained: usize) {
    let device = Device::flex().autodiff();
    let batches = batches(&device, dtype);
    let weights = match dtype {
        FloatDType::BF16 => WeightFormat::Split24,
        _ => WeightFormat::Plain,
    };
    let config = optim::AdamWConfig::new().with_weight_format(weights);
    for optimizer in [
        config.clone().init(),
        config.with_state_format(StateFormat::Bits8).init(),
        burn::optim::SgdConfig::new().init(),
    ] {
        let initial = init();
        let copy = || copy(&initial, &init);
        let mut stock = copy();
        let mut stepped = optimizer.clone();
        let config = FusedConfig::new().with_full_precision_accumulation(true);
        let mut fused = FusedOptimizer::new(copy(), optimizer)
            .unwrap()
            .with_config(config)
            .unwrap();
        assert_eq!(fused.num_retained(), retained);
        for group in 0..2 {
            let mut sum = GradientsAccumulator::new();
            for micro_batch in 4 * group..4 * group + 4 {
                let gradients = loss(&stock, &batches, micro_batch).backward();
                let mut gradients = GradientsParams::from_grads(gradients, &stock);
                map_gradients(&stock, &mut gradients, |_, gradient| {
                    Some(gradient.cast(FloatDType::F32))
                });
                sum.accumulate(&stock, gradients);
            }
            let rounded = in_types_of(&stock, sum.grads());
            stock = stepped.step(RATE, stock, rounded);
            for micro_batch in 4 * group..4 * group + 3 {
                fused
                    .accumulate(|model| loss(model, &batches, micro_batch))
                    .unwrap();
            }
            fused
                .step(RATE, |model| loss(model, &batches, 4 * group + 3))
                .unwrap();
        }
        println!("{dtype:?}, {retained} retained");
        assert_equal_weights(&stock, &fused.model());
    }
}

/// With released parameters, and with retained ones.
#[test]
fn full_precision_sums_match_stock_loop() {
    let plain = || Network::init(&flex());
    let adapted = || plain().apply_lora(Lora::new(2, 4.0)).unfreeze();
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        assert_equals_sums_in_f32(|| cast(plain(), dtype).unwrap(), dtype, 0);
        assert_equals_sums_in_f32(|| cast(adapted(), dtype).unwrap(), dtype, 2);
    }
}

/// 256 small gradients after a large one. In a bf16 sum they have no effect.
#[test]
fn small_gradients_count_in_full_precision() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(64, 64).with_bias(false).init(&device);
    let model: Linear = cast(model, FloatDType::BF16).unwrap();
    let moved = |in_full_precision: bool| {
        let fused = FusedOptimizer::new(model.clone(), SgdConfig::new().init()).unwrap();
        let config = FusedConfig::new().with_full_precision_accumulation(in_full_precision);
        let mut fused = fused.with_config(config).unwrap();
        let before = fused.model().weight.val().inner().cast(FloatDType::F32);
        let loss = |model: &Linear, factor: f32| (model.weight.val() * factor).sum();
        fused.accumulate(|model| loss(model, 1.0)).unwrap();
        for _ in 0..255 {
            fused.accumulate(|model| loss(model, 1.0 / 512.0)).unwrap();
        }
        fused.step(1.0, |model| loss(model, 1.0 / 512.0)).unwrap();
        let after = fused.model().weight.val().inner().cast(FloatDType::F32);
        (before - after).mean().into_scalar::<f32>()
    };
    let [in_bf16, in_f32] = [false, true].map(moved);
    assert!((in_bf16 - 1.0).abs() < 0.01, "{in_bf16}");
    assert!((in_f32 - 1.5).abs() < 0.01, "{in_f32}");
}

#[test]
fn full_precision_without_buffer_is_refused() {
    let model = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
    let optimizer = optim::AdamWConfig::new().build();
    let fused = FusedOptimizer::accumulating_in_state(model, optimizer).unwrap();
    let config = FusedConfig::new().with_full_precision_accumulation(true);
    assert_matches!(fused.with_config(config), Err(FusedError::Config { .. }));
}
