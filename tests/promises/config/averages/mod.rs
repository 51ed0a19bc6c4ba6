//! Averages of the weights equal those of a stock loop to the bit, with all other options of a training.

mod records;

use crate::common::normed::Normed;
use crate::common::*;

const RATE: f64 = 0.05;

fn init() -> Stack {
    Stack::init(3, 8, &flex())
}

fn loss(model: &Stack, x: &Tensor<2>) -> Tensor<1> {
    model.loss_in_blocks(x.clone())
}

fn batches(count: usize) -> Vec<Tensor<2>> {
    randoms(count, [4, 8], &flex())
}

fn averaging(config: WeightAveragingConfig) -> FusedConfig {
    FusedConfig::averaging(config)
}

fn ema(decay: f64) -> WeightAveragingConfig {
    WeightAveragingConfig::new().with_decay(Some(decay))
}

fn configs() -> [WeightAveragingConfig; 5] {
    let uniform = WeightAveragingConfig::new();
    [
        ema(0.9),
        ema(0.999).with_warm_up(true),
        ema(0.5).with_every(2),
        uniform,
        uniform.with_every(3),
    ]
}

fn fused(initial: &Stack, config: FusedConfig) -> FusedOptimizer<Stack> {
    let model = copy(initial, init);
    FusedOptimizer::new(model, AdamWConfig::new().init())
        .unwrap()
        .with_config(config)
        .unwrap()
}

/// Values of the parameters, each as a row.
fn values<M: Module>(model: &M) -> Vec<Tensor<1>> {
    let mut values = Vec::new();
    map_values(model.clone(), |_, value| {
        values.push(value.clone());
        value
    });
    values
}

fn assert_values(expected: &[Tensor<1>], model: &Stack) {
    let found = values(model);
    assert_eq!(expected.len(), found.len());
    for (expected, found) in expected.iter().zip(found) {
        found.to_data().assert_eq(&expected.to_data(), true);
    }
}

/// An average in operations of Burn.
#[derive(Clone)]
struct ByHand {
    config: WeightAveragingConfig,
    updates: usize,
    mean: Tensor<1>,
}

impl ByHand {
    fn all(config: WeightAveragingConfig, model: &Stack) -> Vec<Self> {
        let start = |value: Tensor<1>| Self {
            config,
            updates: 0,
            mean: value.cast(FloatDType::F32),
        };
        values(model).into_iter().map(start).collect()
    }

    fn update(&mut self, value: Tensor<1>) {
        self.updates += 1;
        if !self.updates.is_multiple_of(self.config.every) {
            return;
        }
        let n = (self.updates / self.config.every) as f64;
        let (mean, value) = (self.mean.clone(), value.cast(FloatDType::F32));
        self.mean = match self.config.decay {
            Some(decay) => {
                let warm = (1.0 + n) / (10.0 + n);
                let decay = match self.config.warm_up {
                    true => decay.min(warm),
                    false => decay,
                };
                mean * decay + value * (1.0 - decay)
            }
            None if n == 1.0 => value,
            None => mean.clone() + (value - mean) / n,
        };
    }
}

fn means(averages: &[ByHand]) -> Vec<Tensor<1>> {
    averages.iter().map(|it| it.mean.clone()).collect()
}

#[test]
fn average_after_each_step_equals_stock_loop() {
    let initial = init();
    let xs = batches(7);
    let adamw = [AdamWConfig::new().init(), optim::AdamWConfig::new().init()];
    let offloads = OFFLOADS.map(|it| Some(offload_from_flex(it)));
    for offload in [None].into_iter().chain(offloads) {
        for (optimizer, config) in product(&adamw, configs()) {
            let mut model = copy(&initial, init);
            let mut stock = AdamWConfig::new().init();
            let mut by_hand = ByHand::all(config, &model);
            let how = averaging(config).with_offload(offload.clone());
            let mut fused = FusedOptimizer::new(copy(&initial, init), optimizer.clone())
                .unwrap()
                .with_config_on(how.clone(), &Device::flex())
                .unwrap();
            assert_equal_weights(&initial, &fused.averaged());
            for x in &xs {
                model = train_stock(model, &mut stock, 1, RATE, |model, _| loss(model, x));
                for (average, value) in by_hand.iter_mut().zip(values(&model)) {
                    average.update(value);
                }
                fused.step(RATE, |model| loss(model, x)).unwrap();
                if offload.is_none() {
                    assert_eq!(fused.last_step().copied, Some(0), "{how}");
                }
                assert_values(&means(&by_hand), &fused.averaged());
            }
            assert_equal_weights(&model, &fused.model());
        }
    }
}

#[test]
fn average_without_update_stays() {
    let initial = init();
    let xs = batches(4);

    // Micro-batches are one update.
    let mut group = fused(&initial, averaging(WeightAveragingConfig::new()));
    for x in &xs {
        group.accumulate(|model| loss(model, x)).unwrap();
    }
    assert_equal_weights(&initial, &group.averaged());
    group.step_accumulated(RATE).unwrap();
    assert_equal_weights(&group.model(), &group.averaged());

    // A skipped step is not an update.
    let scaling = LossScalingConfig::new().with_overflow(Overflow::SkipStep);
    let how = averaging(ema(0.5)).with_loss_scaling(Some(scaling));
    let mut skipping = fused(&initial, how);
    skipping
        .step_repeatable(RATE, |model| loss(model, &xs[0]))
        .unwrap();
    let before = skipping.averaged();
    skipping
        .step_repeatable(RATE, |model| loss(model, &xs[0]) * f32::INFINITY)
        .unwrap();
    assert!(skipping.last_step().overflowed);
    assert_equal_weights(&before, &skipping.averaged());

    // Two passes are one update.
    let clipping = Some(GlobalNormClippingConfig::Exact(1e9));
    let mut clipped = fused(&initial, averaging(ema(0.5)).with_clipping(clipping));
    let mut plain = fused(&initial, averaging(ema(0.5)));
    for x in &xs {
        clipped
            .step_repeatable(RATE, |model| loss(model, x))
            .unwrap();
        plain.step(RATE, |model| loss(model, x)).unwrap();
    }
    assert_equal_weights(&plain.averaged(), &clipped.averaged());
}

#[test]
fn average_of_new_layer_starts_as_its_weights() {
    let xs = batches(3);
    // Burn's own optimizer does not step in f64 after it was loaded from a record.
    let optimizer = optim::AdamWConfig::new().init();
    let mut one = FusedOptimizer::new(init(), optimizer)
        .unwrap()
        .with_config(averaging(ema(0.5)))
        .unwrap();
    one.step(RATE, |model| loss(model, &xs[0])).unwrap();
    let mut gone = None;
    one.change_model(|mut model| {
        gone = model.layers.pop();
        model
    })
    .unwrap();
    one.step(RATE, |model| loss(model, &xs[1])).unwrap();
    one.change_model(|mut model| {
        model.layers.extend(gone);
        model
    })
    .unwrap();
    let [model, averaged] = [one.model(), one.averaged()].map(|model| values(&model));
    for (of, (value, average)) in model.iter().zip(&averaged).enumerate() {
        assert_eq!(value.to_data() == average.to_data(), of / 2 == 2);
    }

    // It continues in another type.
    one.change_model(|model| cast(model, FloatDType::F64).unwrap())
        .unwrap();
    let before = values(&one.averaged());
    let x = Tensor::from_inner(xs[2].clone().inner().cast(FloatDType::F64));
    one.step(RATE, |model| loss(model, &x)).unwrap();
    let next = before.into_iter().zip(values(&one.model()));
    let next: Vec<_> = next.map(|(mean, value)| mean * 0.5 + value * 0.5).collect();
    assert_values(&next, &one.averaged());
}

#[test]
fn averaged_model_has_current_running_statistics() {
    let device = Device::flex().autodiff();
    let mut fused = FusedOptimizer::new(Normed::init(8, 8, &device), SgdConfig::new().init())
        .unwrap()
        .with_config(averaging(ema(0.5)))
        .unwrap();
    for x in batches(3) {
        fused
            .step(RATE, |model| model.forward(x).powi_scalar(2).mean())
            .unwrap();
    }
    let [current, averaged] = [fused.model(), fused.averaged()].map(|model| model.valid());
    let mean = |model: &Normed| model.norm.running_mean.value_sync().into_data();
    assert_eq!(mean(&current), mean(&averaged));
    assert_ne!(
        current.linear.weight.val().into_data(),
        averaged.linear.weight.val().into_data()
    );
}

#[derive(Module, Debug)]
struct Inner {
    average: Linear,
}

/// Its first layer has the path that averages have in records.
#[derive(Module, Debug)]
struct Named {
    backburn: Inner,
    other: Linear,
}

impl Named {
    fn init() -> Self {
        let device = Device::flex().autodiff();
        let layer = || LinearConfig::new(8, 8).init(&device);
        Self {
            backburn: Inner { average: layer() },
            other: layer(),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.backburn.average.forward(x);
        self.other.forward(x).powi_scalar(2).mean()
    }
}

#[test]
fn layer_named_like_averages_matches_stock() {
    let (initial, xs) = (Named::init(), batches(3));
    let loss = |model: &Named, step: usize| model.loss(xs[step].clone());
    let adamw = AdamWConfig::new().init();
    let stock = copy(&initial, Named::init);
    let stock = train_stock(stock, &mut adamw.clone(), 3, RATE, loss);
    let mut fused = FusedOptimizer::new(initial, adamw)
        .unwrap()
        .with_config(averaging(ema(0.5)))
        .unwrap();
    train_fused(&mut fused, 3, RATE, loss);
    assert_equal_weights(&stock, &fused.model());
}

#[test]
fn average_option_out_of_range_is_refused() {
    let uniform = WeightAveragingConfig::new();
    for (config, says) in [
        (ema(1.0), "`decay` is 1"),
        (ema(-0.1), "`decay` is -0.1"),
        (ema(f64::NAN), "`decay` is NaN"),
        (uniform.with_every(0), "`every` is 0"),
    ] {
        let one = fused(&init(), FusedConfig::new());
        let error = one.with_config(averaging(config)).expect_err("refused");
        assert_matches!(error, FusedError::Config { .. });
        assert_says(&error, says);
    }
}

#[test]
fn average_of_frozen_parameter_is_dropped_by_another_config() {
    let initial = init();
    let xs = batches(4);
    let mut fused = fused(&initial, averaging(ema(0.9)));
    for x in &xs {
        fused.step(RATE, |model| loss(model, x)).unwrap();
    }
    fused.change_model(|model| model.freeze()).unwrap();
    let mut fused = fused.with_config(averaging(ema(0.5))).unwrap();
    fused.change_model(|model| model.unfreeze()).unwrap();
    assert_equal_weights(&fused.model(), &fused.averaged());
}

/// A wrapper around an optimizer without state accepts an average, and records how many steps it has made.
#[test]
fn record_with_averages_loads_into_plain_wrapper_and_again() {
    let model = cast(init(), FloatDType::BF16).unwrap();
    let sgd = || {
        let sgd = SgdConfig::new().build();
        ModuleOptimizer::from(optim::InFormat::new(sgd, WeightFormat::Stochastic))
    };
    let x = &batches(1)[0].clone().cast(FloatDType::BF16);
    let fused = FusedOptimizer::new(model, sgd()).unwrap();
    let mut averaged = fused.with_config(averaging(ema(0.9))).unwrap();
    averaged.step(RATE, |model| loss(model, x)).unwrap();
    let mut plain = FusedOptimizer::new(averaged.model(), sgd()).unwrap();
    plain.load_record(reread(averaged.to_record())).unwrap();
    plain.load_record(reread(plain.to_record())).unwrap();
}
