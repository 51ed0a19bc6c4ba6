//! A fused optimizer between its steps: changed, taken apart.

use backburn::optim::AdamWConfig;

use super::*;
use crate::backends::on_every_backend;

#[test]
fn a_fused_optimizer_is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<FusedOptimizer<Mlp>>();
}

/// Keeps every weight within a bound.
struct Clamp(f32);

impl ModuleMapper for Clamp {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let bound = self.0;
        param.map(|value| {
            let tracked = value.is_require_grad();
            let clamped = value.inner().clamp(-bound, bound);
            Tensor::from_inner(clamped).set_require_grad(tracked)
        })
    }
}

fn weights_clipped_after_every_step_equal_stock(device: &Device) {
    let initial = Mlp::init(device);
    let copy = || copy(&initial, || Mlp::init(device));
    let xs = xs(device, 4);
    let mut stock = copy();
    let mut optimizer = burn::optim::AdamWConfig::new().init();
    let mut fused = FusedOptimizer::new_ok(copy(), burn::optim::AdamWConfig::new().init());
    for x in &xs {
        let gradients = stock.loss(x.clone()).backward();
        let gradients = GradientsParams::from_grads(gradients, &stock);
        stock = optimizer.step(RATE, stock, gradients).map(&mut Clamp(0.2));
        fused.step_ok(RATE, |model| model.loss(x.clone()));
        assert_eq!(fused.last_step().copied.unwrap_or(0), 0);
        fused.change_model_ok(|model| model.map(&mut Clamp(0.2)));
        // It still tells of the step.
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

fn values_that_are_no_leaves_are_refused_by_name(device: &Device) {
    let mut fused = FusedOptimizer::new_ok(Mlp::init(device), AdamWConfig::new().init());
    let before = weights(&fused.model());
    let path = "input.weight".to_string();
    assert_eq!(
        fused.change_model(|model| model.map(&mut Halve)),
        Err(FusedError::NotALeaf { path })
    );
    assert_eq!(weights(&fused.model()), before);
}

fn a_changed_model_is_held_to_what_the_constructor_asks(device: &Device) {
    let model = Mlp::init(device);
    let mut fused = FusedOptimizer::accumulating_in_state_ok(model, AdamWConfig::new().build());
    let refused = fused.change_model(|model| model.valid());
    assert!(matches!(refused, Err(FusedError::NotAutodiff { .. })));
    fused.step_ok(RATE, |model| model.loss(xs(device, 1).remove(0)));
    fused.change_model_ok(|model| model.apply_lora(Lora::new(2, 4.0)).unfreeze());
    assert_eq!((fused.num_released(), fused.num_retained()), (6, 2));
    fused.step_ok(RATE, |model| model.loss(xs(device, 1).remove(0)));
    assert_eq!(fused.last_step().updated, 8);
}

fn a_refused_change_leaves_running_statistics(device: &Device) {
    let model = BatchNormConfig::new(3).init(device);
    let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init());
    fused.step_ok(RATE, |norm| {
        norm.forward(xs(device, 1).remove(0)).powi_scalar(3).mean()
    });
    let before = weights(&fused.valid());
    let refused = fused.change_model(|norm: BatchNorm| norm.map(&mut Halve));
    assert!(matches!(refused, Err(FusedError::NotALeaf { .. })));
    assert_eq!(weights(&fused.valid()), before);
}

/// Before the first step, within a group, and after it.
fn an_optimizer_that_accumulated_in_its_state_works_in_stock(device: &Device) {
    let initial = Mlp::init(device);
    let copy = || copy(&initial, || Mlp::init(device));
    let xs = xs(device, 3);
    let stock_step = |model: Mlp, optimizer: &mut burn::optim::ModuleOptimizer, x: &Tensor<2>| {
        let gradients = model.loss(x.clone()).backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        optimizer.step(RATE, model, gradients)
    };
    let mut expected = AdamWConfig::new().init();
    let expected = stock_step(copy(), &mut expected, &xs[0]);
    let start = || FusedOptimizer::accumulating_in_state_ok(copy(), AdamWConfig::new().build());
    let (model, mut optimizer) = start().into_parts();
    assert_equal_weights(&expected, &stock_step(model, &mut optimizer, &xs[0]));

    let mut fused = start();
    fused.accumulate_ok(|model| model.loss(xs[0].clone()));
    let (model, mut optimizer) = fused.into_parts();
    assert_equal_weights(&initial, &model);
    let model = stock_step(model, &mut optimizer, &xs[1]);
    let mut whole = start();
    whole.accumulate_ok(|model| model.loss(xs[0].clone()));
    whole.step_ok(RATE, |model| model.loss(xs[1].clone()));
    assert_equal_weights(&whole.model(), &model);
    let before = model.clone();
    assert_changed(&before, &stock_step(model, &mut optimizer, &xs[2]), |_| {
        true
    });
}

fn the_report_is_of_the_last_pass_or_of_none(device: &Device) {
    let x = xs(device, 1).remove(0);
    let mut fused = FusedOptimizer::new_ok(Mlp::init(device), SgdConfig::new().init());
    fused.step_ok(RATE, |model| model.loss(x.clone()));
    assert_eq!(fused.last_step().updated, 4);
    let detached = fused.step(RATE, |model| model.loss(x.clone()).detach());
    assert_eq!(detached.unwrap_err(), FusedError::LossNotTracked);
    assert_eq!(fused.last_step().updated, 0);
    fused.step_ok(RATE, |model| model.loss(x.clone()));
    panic_of(|| {
        fused.step_ok(RATE, |model| {
            let loss = model.loss(x.clone());
            assert!(x.dims()[0] > 5, "too few");
            loss
        })
    });
    assert_eq!(fused.last_step().updated, 0);
}

on_every_backend!(
    weights_clipped_after_every_step_equal_stock,
    values_that_are_no_leaves_are_refused_by_name,
    a_changed_model_is_held_to_what_the_constructor_asks,
    an_optimizer_that_accumulated_in_its_state_works_in_stock,
    a_refused_change_leaves_running_statistics,
    the_report_is_of_the_last_pass_or_of_none,
);
