//! The memory that a conversion of a training takes.

use super::*;

/// Few parameters, because each takes some kilobytes in addition to its values.
const DEPTH: usize = 2;
const WIDTH: usize = 256;

/// The peak bytes of `exchange` after a step, in multiples of the parameters' bytes.
fn needed<R>(exchange: impl FnOnce(FusedOptimizer<Mlp>) -> R) -> f64 {
    let x = x(WIDTH);
    let model = Mlp::init(DEPTH, WIDTH, &device());
    let parameters = 4 * model.num_params();
    let optimizer: ModuleOptimizer = backburn::optim::AdamWConfig::new().init();
    let mut fused = FusedOptimizer::new_ok(model, optimizer);
    fused.step_ok(1e-3, |model| model.loss(x.clone()));
    let needed = peak(|| drop(exchange(fused)));
    needed as f64 / parameters as f64
}

#[test]
fn exchange_of_training_copies_no_tensors() {
    let _alone = alone();
    let parts = needed(FusedOptimizer::into_parts);
    let fused_again = needed(|fused| {
        let (model, optimizer) = fused.into_parts();
        FusedOptimizer::new_ok(model, optimizer)
    });
    let made_again = needed(|fused| fused.with_config_ok(FusedConfig::new()));
    let frozen = needed(|mut fused| {
        fused.change_model_ok(Module::freeze);
        fused.change_model_ok(Module::unfreeze);
        fused
    });
    for (exchange, needed) in [
        ("into_parts", parts),
        ("into_parts, new", fused_again),
        ("with_config", made_again),
        ("change_model", frozen),
    ] {
        // A weight is a quarter of P.
        assert!(needed < 0.05, "{exchange}: {needed} P");
    }
    // Burn's records hold copies.
    let record = needed(|fused| fused.to_record());
    assert!(record > 1.9, "a record: {record} P");
}

/// A step after the exchange writes in place, because nothing shares the values any more.
#[test]
fn step_after_exchange_needs_bytes_of_one_before() {
    let _alone = alone();
    let x = x(WIDTH);
    let parameters = 4 * Mlp::init(DEPTH, WIDTH, &device()).num_params();
    let optimizer = || backburn::optim::AdamWConfig::new().init();
    let mut fused = FusedOptimizer::new_ok(Mlp::init(DEPTH, WIDTH, &device()), optimizer());
    let step = |fused: &mut FusedOptimizer<Mlp>| {
        let needed = peak(|| drop(fused.step_ok(1e-3, |model| model.loss(x.clone()))));
        assert_eq!(fused.last_step().copied, Some(0));
        needed as f64 / parameters as f64
    };
    step(&mut fused);
    let plain = step(&mut fused);
    let (model, optimizer) = fused.into_parts();
    let mut fused = FusedOptimizer::new_ok(model, optimizer);
    let after_parts = step(&mut fused);
    let mut fused = fused.with_config_ok(FusedConfig::new());
    let after_config = step(&mut fused);
    fused.change_model_ok(Module::freeze);
    fused.change_model_ok(Module::unfreeze);
    let after_thaw = step(&mut fused);
    for after in [after_parts, after_config, after_thaw] {
        assert!(after < plain + 0.02, "{after} P, {plain} P before");
    }
}
