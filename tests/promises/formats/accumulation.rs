//! Gradients in bf16 that are summed in f32.

use super::*;

/// Sums in f32 of the gradients of a model, by hand.
#[derive(Default)]
struct Sums(GradientsParams);

impl Sums {
    fn add(&mut self, model: &Network, gradients: &GradientsParams) {
        model.visit(&mut Add(self, gradients));
    }

    /// The gradients of a step.
    fn rounded(mut self, model: &Network, dtype: FloatDType) -> GradientsParams {
        model.visit(&mut Round(&mut self, dtype));
        self.0
    }
}

struct Add<'a>(&'a mut Sums, &'a GradientsParams);

impl ModuleVisitor for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.1.get::<D>(param.id) else {
            return;
        };
        let gradient = gradient.cast(FloatDType::F32);
        let sum = match self.0.0.remove::<D>(param.id) {
            Some(sum) => sum + gradient,
            None => gradient,
        };
        self.0.0.register(param.id, sum);
    }
}

struct Round<'a>(&'a mut Sums, FloatDType);

impl ModuleVisitor for Round<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(sum) = self.0.0.remove::<D>(param.id) {
            let rounded = sum.cast(self.1);
            self.0.0.register(param.id, rounded);
        }
    }
}

/// The second layer receives no gradient from the last micro-batch of a group. The first layer is in a checkpointed
/// block.
fn loss(model: &Network, batches: &[Tensor<2>], micro_batch: usize) -> Tensor<1> {
    let x = batches[micro_batch % batches.len()].clone();
    let run = |layer: &Linear, x| layer.forward(x).tanh();
    let x = backburn::gradient_checkpointing(&model.first, x, run);
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
        let fused = FusedOptimizer::new_ok(copy(), optimizer);
        let mut fused =
            fused.with_config_ok(FusedConfig::new().with_full_precision_accumulation(true));
        assert_eq!(fused.num_retained(), retained);
        for group in 0..2 {
            let mut sums = Sums::default();
            for micro_batch in 4 * group..4 * group + 4 {
                let gradients = loss(&stock, &batches, micro_batch).backward();
                sums.add(&stock, &GradientsParams::from_grads(gradients, &stock));
            }
            let gradients = sums.rounded(&stock, dtype);
            stock = stepped.step(RATE, stock, gradients);
            for micro_batch in 4 * group..4 * group + 3 {
                fused.accumulate_ok(|model| loss(model, &batches, micro_batch));
            }
            fused.step_ok(RATE, |model| loss(model, &batches, 4 * group + 3));
        }
        assert_equal_weights(&stock, &fused.model());
    }
}

#[test]
fn full_precision_sums_match_stock_loop() {
    let device = Device::flex().autodiff();
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let init = || cast(Network::init(&device), dtype).unwrap();
        assert_equals_sums_in_f32(init, dtype, 0);
    }
}

#[test]
fn sums_of_retained_gradients_are_in_full_precision_too() {
    let device = Device::flex().autodiff();
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let init = || {
            let model = Network::init(&device).apply_lora(Lora::new(2, 4.0));
            cast(model.unfreeze(), dtype).unwrap()
        };
        assert_equals_sums_in_f32(init, dtype, 2);
    }
}

/// 256 small gradients after a large one. In a bf16 sum they have no effect.
#[test]
fn small_gradients_count_in_full_precision() {
    let device = Device::flex().autodiff();
    let model = cast(
        LinearConfig::new(64, 64).with_bias(false).init(&device),
        FloatDType::BF16,
    )
    .unwrap();
    let moved = |fused: FusedOptimizer<Linear>| {
        let mut fused = fused;
        let before = fused.model().weight.val().inner().cast(FloatDType::F32);
        let loss = |model: &Linear, factor: f32| (model.weight.val() * factor).sum();
        fused.accumulate_ok(|model| loss(model, 1.0));
        for _ in 0..255 {
            fused.accumulate_ok(|model| loss(model, 1.0 / 512.0));
        }
        fused.step_ok(1.0, |model| loss(model, 1.0 / 512.0));
        let after = fused.model().weight.val().inner().cast(FloatDType::F32);
        (before - after).mean().into_scalar::<f32>()
    };
    let fused = || FusedOptimizer::new_ok(model.clone(), burn::optim::SgdConfig::new().init());
    let in_bf16 = moved(fused());
    let in_f32 =
        moved(fused().with_config_ok(FusedConfig::new().with_full_precision_accumulation(true)));
    assert!((in_bf16 - 1.0).abs() < 0.01, "{in_bf16}");
    assert!((in_f32 - 1.5).abs() < 0.01, "{in_f32}");
}

#[test]
fn full_precision_without_buffer_is_refused() {
    let model = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
    let optimizer = optim::AdamWConfig::new().build();
    let fused = FusedOptimizer::accumulating_in_state_ok(model, optimizer);
    let error = fused
        .with_config(FusedConfig::new().with_full_precision_accumulation(true))
        .unwrap_err();
    assert_matches!(error, backburn::FusedError::Config { .. });
}
