//! A fused optimizer that is changed or taken apart between steps.

use super::*;

#[test]
fn fused_optimizer_is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<FusedOptimizer<Mlp>>();
}

fn weights_clamped_after_every_step_match_stock(device: &Device) {
    let clamped = |model: Mlp| map_values(model, |_, value| value.clamp(-0.2, 0.2));
    let mut stock = Mlp::init(device);
    let mut optimizer = AdamWConfig::new().init();
    let mut fused = adamw(copied(&stock));
    for x in xs(device, 4) {
        let stepped = train_stock(stock, &mut optimizer, 1, RATE, |model, _| loss(model, &x));
        stock = clamped(stepped);
        fused.step(RATE, |model| loss(model, &x)).unwrap();
        assert_eq!(fused.last_step().copied.unwrap_or(0), 0);
        fused.change_model(clamped).unwrap();
        // It still reports the step.
        assert_eq!(fused.last_step().updated, 4);
        assert_equal_weights(&stock, &fused.model());
    }
}

/// Leaves values that autodiff has computed.
struct Halve;

impl ModuleMapper for Halve {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value * 0.5)
    }
}

fn value_that_is_no_leaf_is_refused_by_name(device: &Device) {
    let mut fused = adamw(Mlp::init(device));
    let before = weights(&fused.model());
    let path = "input.weight".to_string();
    let refused = fused.change_model(|model| model.map(&mut Halve));
    assert_eq!(refused, Err(FusedError::NotALeaf { path }));
    assert_eq!(weights(&fused.model()), before);

    // Running statistics are also unchanged.
    let norm = BatchNormConfig::new(3).init(device);
    let mut fused = FusedOptimizer::new(norm, SgdConfig::new().init()).unwrap();
    fused
        .step(RATE, |norm: &BatchNorm| {
            norm.forward(xs(device, 1).remove(0)).powi_scalar(3).mean()
        })
        .unwrap();
    let before = weights(&fused.valid());
    let refused = fused.change_model(|norm| norm.map(&mut Halve));
    assert_matches!(refused, Err(FusedError::NotALeaf { .. }));
    assert_eq!(weights(&fused.valid()), before);
}

fn changed_model_must_fit_constructor(device: &Device) {
    let optimizer = optim::AdamWConfig::new().build();
    let mut fused = FusedOptimizer::accumulating_in_state(Mlp::init(device), optimizer).unwrap();
    let refused = fused.change_model(|model| model.valid());
    assert_matches!(refused, Err(FusedError::NotAutodiff { .. }));
    fused
        .step(RATE, |model| loss(model, &xs(device, 1)[0]))
        .unwrap();
    fused
        .change_model(|model| model.apply_lora(Lora::new(2, 4.0)).unfreeze())
        .unwrap();
    assert_eq!(parts(&fused), (6, 2, 0));
    fused
        .step(RATE, |model| loss(model, &xs(device, 1)[0]))
        .unwrap();
    assert_eq!(fused.last_step().updated, 8);
}

/// Before the first step, within a group, and after it.
fn optimizer_that_accumulated_in_state_works_in_stock(device: &Device) {
    let initial = Mlp::init(device);
    let xs = xs(device, 3);
    let step = |model: Mlp, optimizer: &mut ModuleOptimizer, x: usize| {
        step_stock(model, optimizer, RATE, &xs[x..=x], loss)
    };
    let start = || {
        let optimizer = optim::AdamWConfig::new().build();
        FusedOptimizer::accumulating_in_state(copied(&initial), optimizer).unwrap()
    };
    let mut expected = optim::AdamWConfig::new().init();
    let expected = step(copied(&initial), &mut expected, 0);
    let (model, mut optimizer) = start().into_parts();
    assert_equal_weights(&expected, &step(model, &mut optimizer, 0));

    let mut fused = start();
    fused.accumulate(|model| loss(model, &xs[0])).unwrap();
    let (model, mut optimizer) = fused.into_parts();
    assert_equal_weights(&initial, &model);
    let model = step(model, &mut optimizer, 1);
    let mut whole = start();
    step_group(&mut whole, RATE, &xs[..2], loss);
    assert_equal_weights(&whole.model(), &model);
    let next = step(model.clone(), &mut optimizer, 2);
    assert_changed(&model, &next, |_| true);
}

fn report_is_of_last_pass_or_of_none(device: &Device) {
    let x = &xs(device, 1)[0];
    let mut fused = sgd(Mlp::init(device));
    fused.step(RATE, |model| loss(model, x)).unwrap();
    assert_eq!(fused.last_step().updated, 4);
    let detached = fused.step(RATE, |model| loss(model, x).detach());
    assert_eq!(detached.unwrap_err(), FusedError::LossNotTracked);
    assert_eq!(fused.last_step().updated, 0);
    fused.step(RATE, |model| loss(model, x)).unwrap();
    panic_of(|| fused.step(RATE, |model| panics(model, x)).unwrap());
    assert_eq!(fused.last_step().updated, 0);
}

on_every_backend!(
    weights_clamped_after_every_step_match_stock,
    value_that_is_no_leaf_is_refused_by_name,
    changed_model_must_fit_constructor,
    optimizer_that_accumulated_in_state_works_in_stock,
    report_is_of_last_pass_or_of_none,
);
