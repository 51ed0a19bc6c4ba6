//! The optimizer's record contains the adaptive state of the policies, so a resumed run equals the uninterrupted one.

use burn::optim::*;

use super::*;
use crate::backends::on_every_backend;

type Choose = fn(FusedOptimizer<Squashed>) -> FusedOptimizer<Squashed>;

/// Far below the usual norm, so that every step is clipped.
fn lagged(fused: FusedOptimizer<Squashed>) -> FusedOptimizer<Squashed> {
    let config = fused.config().clone();
    fused.with_config_ok(config.with_clipping(Some(GlobalNormClippingConfig::Lagged(0.01))))
}

/// A loss scale that doubles with every other step.
fn scaled(fused: FusedOptimizer<Squashed>) -> FusedOptimizer<Squashed> {
    let scaling = LossScalingConfig::new()
        .with_growth_interval(Some(2))
        .with_overflow(Overflow::SkipParameter);
    let config = fused.config().clone();
    fused.with_config_ok(config.with_loss_scaling(Some(scaling)))
}

fn step(fused: &mut FusedOptimizer<Squashed>, x: &Tensor<2>) {
    fused.step_ok(LEARNING_RATE, |model| model.loss(x.clone()));
}

fn lagged_clipping_resumes_exactly(device: &Device) {
    let policies: [Choose; 3] = [
        lagged,
        |fused| scaled(lagged(fused)),
        |fused| lagged(scaled(fused)),
    ];
    for choose in policies {
        let batches = batches(device, 6);
        // Plain SGD shows every coefficient in the weights.
        let fused = |model| choose(FusedOptimizer::new_ok(model, SgdConfig::new().init()));
        let mut through = fused(Squashed::init(device));
        for x in &batches[..3] {
            step(&mut through, x);
        }
        let mut resumed = fused(copy(&through.model(), || Squashed::init(device)));
        resumed.load_record_ok(through.to_record());
        for x in &batches[3..] {
            step(&mut through, x);
            step(&mut resumed, x);
            assert_eq!(through.last_step().clipping, resumed.last_step().clipping);
            assert_eq!(
                through.last_step().loss_scale,
                resumed.last_step().loss_scale
            );
            assert!(through.last_step().clipping.unwrap() < 1.0);
        }
        assert_equal_weights(&through.model(), &resumed.model());
    }
}

fn a_record_from_before_the_first_step_clips_nothing(device: &Device) {
    let batches = batches(device, 2);
    let mut fused = lagged(FusedOptimizer::new_ok(
        Squashed::init(device),
        SgdConfig::new().init(),
    ));
    let record = fused.to_record();
    step(&mut fused, &batches[0]);
    fused.load_record_ok(record);
    step(&mut fused, &batches[1]);
    assert_eq!(fused.last_step().clipping, Some(1.0));
}

fn stock_burn_passes_the_policies_over(device: &Device) {
    let batches = batches(device, 3);
    let optimizers: [fn() -> ModuleOptimizer; 3] = [
        || SgdConfig::new().init(),
        || AdamWConfig::new().init(),
        || LionConfig::new().init(),
    ];
    for optimizer in optimizers {
        let mut fused = lagged(scaled(FusedOptimizer::new_ok(
            Squashed::init(device),
            optimizer(),
        )));
        step(&mut fused, &batches[0]);
        let model = || copy(&fused.model(), || Squashed::init(device));
        let loss = |model: &Squashed, step: usize| model.loss(batches[1 + step].clone());

        let mut stock = optimizer().load_record(fused.to_record());
        let stock_model = train_stock(model(), &mut stock, 2, LEARNING_RATE, loss);
        let mut plain = FusedOptimizer::new_ok(model(), optimizer());
        plain.load_record_ok(fused.to_record());
        train_fused(&mut plain, 2, LEARNING_RATE, loss);
        assert_equal_weights(&stock_model, &plain.model());

        // And a stock record loads where there are policies.
        let mut back = lagged(scaled(FusedOptimizer::new_ok(model(), optimizer())));
        back.load_record_ok(stock.to_record());
        step(&mut back, &batches[1]);
        assert_eq!(back.last_step().clipping, Some(1.0));
        assert_eq!(back.last_step().loss_scale, Some(65536.0));
    }
}

fn a_refused_record_leaves_the_policies_as_they_are(device: &Device) {
    let x = batches(device, 1).remove(0);
    let fused = || FusedOptimizer::new_ok(Squashed::init(device), AdamWConfig::new().init());
    let mut other = lagged(scaled(fused()));
    for _ in 0..2 {
        step(&mut other, &x);
    }
    let mut fused = lagged(scaled(fused()));
    step(&mut fused, &x);
    let norm = fused.last_step().gradient_norm.unwrap();
    fused.load_record(other.to_record()).unwrap_err();
    step(&mut fused, &x);
    assert_eq!(fused.last_step().loss_scale, Some(65536.0));
    assert_eq!(fused.last_step().clipping, Some(0.01 / norm));
}

on_every_backend!(
    lagged_clipping_resumes_exactly,
    a_record_from_before_the_first_step_clips_nothing,
    stock_burn_passes_the_policies_over,
    a_refused_record_leaves_the_policies_as_they_are,
);

/// A record from the time when it contained only the loss scale.
#[test]
fn a_record_with_the_loss_scale_alone_loads() {
    let device = Device::flex().autodiff();
    let id = u64::from_be_bytes(*b"lossscal").to_string();
    let bytes: Bytes = burn_pack::Writer::new(Vec::new())
        .with_scalar(&format!("{id}.__rank"), 1usize.into())
        .with_scalar(&format!("{id}.loss_scale"), 512.0.into())
        .with_scalar(&format!("{id}.good_steps"), 1usize.into())
        .with_metadata(&id, "")
        .into_bytes()
        .unwrap();
    let model = Squashed::init(&device);
    let mut fused = scaled(lagged(FusedOptimizer::new_ok(
        model,
        SgdConfig::new().init(),
    )));
    fused.load_record_ok(OptimizerRecord::from_bytes(bytes).unwrap());
    let x = batches(&device, 1).remove(0);
    let scales = [(); 3].map(|()| {
        step(&mut fused, &x);
        fused.last_step().loss_scale.unwrap()
    });
    assert_eq!(scales, [512.0, 1024.0, 1024.0]);
}

#[test]
fn the_norm_of_exact_clipping_resumes_for_lagged_clipping() {
    let device = Device::flex().autodiff();
    let x = &batches(&device, 1)[0];
    for exact in [
        GlobalNormClippingConfig::Exact(0.01),
        GlobalNormClippingConfig::ExactInBuffer(0.01),
    ] {
        let sgd = |model| FusedOptimizer::new_ok(model, SgdConfig::new().init());
        let config = FusedConfig::clipping(exact);
        let mut before = sgd(Squashed::init(&device)).with_config_ok(config);
        before.step_repeatable_ok(LEARNING_RATE, |model| model.loss(x.clone()));
        let mut resumed = lagged(sgd(copy(&before.model(), || Squashed::init(&device))));
        resumed.load_record_ok(before.to_record());
        step(&mut resumed, x);
        let norm = before.last_step().gradient_norm.unwrap();
        assert_eq!(resumed.last_step().clipping, Some(0.01 / norm));
    }
}
