//! The optimizer's record contains the adaptive state of the policies, so a resumed run equals the uninterrupted one.

use burn::optim::LionConfig;

use super::*;

/// Far below the usual norm, so that every step is clipped.
fn lagged(fused: FusedOptimizer<Squashed>) -> FusedOptimizer<Squashed> {
    let config = fused.config().clone();
    fused
        .with_config(config.with_clipping(Some(GlobalNormClippingConfig::Lagged(0.01))))
        .unwrap()
}

/// A loss scale that doubles with every other step.
fn scaled(fused: FusedOptimizer<Squashed>) -> FusedOptimizer<Squashed> {
    let scaling = LossScalingConfig::new()
        .with_growth_interval(Some(2))
        .with_overflow(Overflow::SkipParameter);
    let config = fused.config().clone();
    fused
        .with_config(config.with_loss_scaling(Some(scaling)))
        .unwrap()
}

/// With plain SGD every coefficient changes the weights.
fn sgd(model: Squashed) -> FusedOptimizer<Squashed> {
    FusedOptimizer::new(model, SgdConfig::new().init()).unwrap()
}

fn step(fused: &mut FusedOptimizer<Squashed>, x: &Tensor<2>) {
    fused.step(LEARNING_RATE, |model| model.loss(x)).unwrap();
}

fn policies_resume_from_record(device: &Device) {
    type Choose = fn(FusedOptimizer<Squashed>) -> FusedOptimizer<Squashed>;
    let policies: [Choose; 3] = [
        lagged,
        |fused| scaled(lagged(fused)),
        |fused| lagged(scaled(fused)),
    ];
    for choose in policies {
        let batches = batches(device, 6);
        let mut through = choose(sgd(Squashed::init(device)));
        for x in &batches[..3] {
            step(&mut through, x);
        }
        let mut resumed = choose(sgd(through.model().copied()));
        resumed.load_record(through.to_record()).unwrap();
        for x in &batches[3..] {
            step(&mut through, x);
            step(&mut resumed, x);
            let [through, resumed] = [&through, &resumed].map(FusedOptimizer::last_step);
            assert_eq!(through.clipping, resumed.clipping);
            assert_eq!(through.loss_scale, resumed.loss_scale);
            assert!(through.clipping.unwrap() < 1.0);
        }
        assert_equal_weights(&through.model(), &resumed.model());
    }
}

fn record_without_policy_state_starts_policies_as_new(device: &Device) {
    let x = &batches(device, 1)[0];
    let reports = |fused: &mut FusedOptimizer<Squashed>| {
        [(); 3].map(|()| {
            step(fused, x);
            let report = fused.last_step();
            (report.loss_scale.unwrap(), report.clipping.unwrap())
        })
    };
    for optimizer in [SgdConfig::new().init(), AdamWConfig::new().init()] {
        let mut fused = lagged(scaled(
            FusedOptimizer::new(Squashed::init(device), optimizer.clone()).unwrap(),
        ));
        let initial = fused.model();
        let mut clipped = lagged(FusedOptimizer::new(initial.clone(), optimizer.clone()).unwrap());
        step(&mut clipped, x);
        let records = [
            fused.to_record(),
            optimizer.to_record(),
            clipped.to_record(),
        ];
        let expected = reports(&mut fused);
        assert_eq!(
            expected.map(|(scale, _)| scale),
            [65536.0, 65536.0, 131_072.0]
        );
        for (record, has_norm) in records.into_iter().zip([false, false, true]) {
            fused.change_model(|_| initial.clone()).unwrap();
            fused.load_record(record).unwrap();
            let found = reports(&mut fused);
            match has_norm {
                true => assert_eq!(found.map(|it| it.0), expected.map(|it| it.0)),
                false => assert_eq!(found, expected),
            }
        }
    }
}

fn record_of_policies_loads_in_stock_and_back(device: &Device) {
    let batches = batches(device, 3);
    for optimizer in [
        SgdConfig::new().init(),
        AdamWConfig::new().init(),
        LionConfig::new().init(),
    ] {
        let new = |model| FusedOptimizer::new(model, optimizer.clone()).unwrap();
        let mut fused = lagged(scaled(new(Squashed::init(device))));
        step(&mut fused, &batches[0]);
        let model = || fused.model().copied();
        let loss = |model: &Squashed, step: usize| model.loss(&batches[1 + step]);

        let mut stock = optimizer.clone().load_record(fused.to_record());
        let stock_model = train_stock(model(), &mut stock, 2, LEARNING_RATE, loss);
        let mut plain = new(model());
        plain.load_record(fused.to_record()).unwrap();
        train_fused(&mut plain, 2, LEARNING_RATE, loss);
        assert_equal_weights(&stock_model, &plain.model());

        // A stock record also loads into a training with policies.
        let mut back = lagged(scaled(new(model())));
        back.load_record(stock.to_record()).unwrap();
        step(&mut back, &batches[1]);
        assert_eq!(back.last_step().clipping, Some(1.0));
        assert_eq!(back.last_step().loss_scale, Some(65536.0));
    }
}

fn refused_record_leaves_policies_unchanged(device: &Device) {
    let x = batches(device, 1).remove(0);
    let fused = || FusedOptimizer::new(Squashed::init(device), AdamWConfig::new().init()).unwrap();
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
    policies_resume_from_record,
    record_without_policy_state_starts_policies_as_new,
    record_of_policies_loads_in_stock_and_back,
    refused_record_leaves_policies_unchanged,
);

/// A record from the time when it contained only the loss scale.
#[test]
fn record_with_loss_scale_alone_loads() {
    let device = flex();
    let id = u64::from_be_bytes(*b"lossscal").to_string();
    let bytes: Bytes = burn_pack::Writer::new(Vec::new())
        .with_scalar(&format!("{id}.__rank"), 1usize.into())
        .with_scalar(&format!("{id}.loss_scale"), 512.0.into())
        .with_scalar(&format!("{id}.good_steps"), 1usize.into())
        .with_metadata(&id, "")
        .into_bytes()
        .unwrap();
    let mut fused = scaled(lagged(sgd(Squashed::init(&device))));
    fused
        .load_record(OptimizerRecord::from_bytes(bytes).unwrap())
        .unwrap();
    let x = batches(&device, 1).remove(0);
    let scales = [(); 3].map(|()| {
        step(&mut fused, &x);
        fused.last_step().loss_scale.unwrap()
    });
    assert_eq!(scales, [512.0, 1024.0, 1024.0]);
}

#[test]
fn norm_of_exact_clipping_resumes_for_lagged_clipping() {
    let x = &batches(&flex(), 1)[0];
    for exact in [
        GlobalNormClippingConfig::Exact(0.01),
        GlobalNormClippingConfig::ExactInBuffer(0.01),
    ] {
        let config = FusedConfig::clipping(exact);
        let mut before = sgd(Squashed::init(&flex())).with_config(config).unwrap();
        before
            .step_repeatable(LEARNING_RATE, |model| model.loss(x))
            .unwrap();
        let mut resumed = lagged(sgd(before.model().copied()));
        resumed.load_record(before.to_record()).unwrap();
        step(&mut resumed, x);
        let norm = before.last_step().gradient_norm.unwrap();
        assert_eq!(resumed.last_step().clipping, Some(0.01 / norm));
    }
}
