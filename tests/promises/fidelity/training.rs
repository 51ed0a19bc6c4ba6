//! Fidelity for all ways to train.

use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;

use super::layers::Convolutional;
use super::*;

fn autodiff_checkpointing_of_burn_matches_stock(device: &Device) {
    let device = &device.clone().gradient_checkpointing();
    let x = random([6, 1, 4, 4], device);
    assert_fused_equals_stock(
        || Convolutional::init(device),
        |model, _| square_mean(Gelu::new().forward(model.forward(x.clone()))),
        |_| true,
    );
}

fn model_in_each_float_type_matches_stock(device: &Device) {
    let dtypes = [FloatDType::F64, FloatDType::F16, FloatDType::BF16];
    for dtype in dtypes.into_iter().filter(|it| device.supports_dtype(*it)) {
        let x = random([5, 3], device).cast(dtype);
        let init = || cast(TwoHeads::init(device), dtype).unwrap();
        assert_eq!(init().body.weight.val().dtype(), DType::from(dtype));
        assert_fused_equals_stock(init, |model, _| model.loss(x.clone()), |_| true);
    }
}

fn groups_with_own_optimizer_and_rate_match_stock(device: &Device) {
    let x = [random([5, 3], device)];
    let loss = |model: &TwoHeads, x: &Tensor<2>| model.loss(x.clone());
    let first = ParamGroup::from_predicate("first");
    let adamw = AdamWConfig::new().init();
    let mut optimizer = adamw.with_group(first, SgdConfig::new().build(), None);
    let body = ParamGroup::from_predicate("body");
    let rates = ModuleLrScheduler::new(ConstantLr::new(RATE));
    let mut rates = rates.with_group(body, ConstantLr::new(1e-3));
    let initial = TwoHeads::init(device);
    let copy = || copy(&initial, || TwoHeads::init(device));

    let mut fused = FusedOptimizer::new(copy(), optimizer.clone()).unwrap();
    let mut stock = copy();
    for _ in 0..STEPS {
        let rate = rates.step();
        stock = step_stock(stock, &mut optimizer, rate.clone(), &x, loss);
        step_group(&mut fused, rate, &x, loss);
    }
    assert_equal_weights(&stock, &fused.model());
}

/// With parameters that are retained, and a short last group.
fn accumulated_gradients_match_stock(device: &Device) {
    let batches: Vec<Tensor<2>> = (0..5).map(|_| random([5, 3], device)).collect();
    let init = || {
        let adapted = TwoHeads::init(device).apply_lora(Lora::new(2, 4.0));
        adapted.unfreeze()
    };
    // The last batch of a group does not reach the second head, which is updated nevertheless.
    let loss = |model: &TwoHeads, batch: &usize| match batch {
        2 => {
            let x = model.body.forward(batches[*batch].clone());
            square_mean(model.first.forward(x))
        }
        _ => model.loss(batches[*batch].clone()),
    };
    let initial = init();
    let mut stock = copy(&initial, init);
    let mut optimizer = AdamWConfig::new().init();
    let mut fused = FusedOptimizer::new(copy(&initial, init), optimizer.clone()).unwrap();
    for group in [&[0, 1, 2][..], &[3, 4]] {
        stock = step_stock(stock, &mut optimizer, RATE, group, loss);
        let before = fused.model();
        for batch in group {
            fused.accumulate(|model| loss(model, batch)).unwrap();
            assert_eq!(fused.last_step().updated, 0);
            assert_equal_weights(&before, &fused.model());
        }
        fused.drop_accumulated();
        step_group(&mut fused, RATE, group, loss);
        assert_eq!(fused.last_step().updated, 12);
        assert_equal_weights(&stock, &fused.model());
    }
}

on_every_backend!(
    autodiff_checkpointing_of_burn_matches_stock,
    model_in_each_float_type_matches_stock,
    groups_with_own_optimizer_and_rate_match_stock,
    accumulated_gradients_match_stock,
);
