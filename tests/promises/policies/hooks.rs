//! Hooks see every finished gradient, may replace it and may keep it from being used.

use burn::optim::*;

use super::*;
use crate::backends::on_every_backend;
use crate::common::*;

fn a_hook_sees_path_id_value_and_gradient_once(device: &Device) {
    let model = Network::init(device);
    let [x, y] = &batches(device, 2)[..] else {
        unreachable!()
    };
    let mut accumulator = GradientsAccumulator::new();
    for x in [x, y] {
        let gradients = model.loss(x.clone()).backward();
        accumulator.accumulate(&model, GradientsParams::from_grads(gradients, &model));
    }
    let gradients = accumulator.grads();

    let noting = Noting::default();
    let mut fused = FusedOptimizer::new_ok(model.clone(), SgdConfig::new().init())
        .with_hook(ParamGroup::all(), noting.clone());
    fused.accumulate_ok(|model| model.loss(x.clone()));
    assert!(noting.0.lock().unwrap().is_empty(), "not finished");
    fused.step_ok(LEARNING_RATE, |model| model.loss(y.clone()));

    let notes = noting.0.lock().unwrap();
    assert_eq!(notes.len(), 6);
    let values = weights(&model);
    for (path, id, value, gradient) in notes.iter() {
        let (_, expected) = values.iter().find(|(other, _)| other == path).unwrap();
        assert_eq!(value.as_bytes(), expected.as_bytes(), "value of `{path}`");
        let expected = match value.rank() {
            1 => gradients.get::<1>(*id).unwrap().into_data(),
            _ => gradients.get::<2>(*id).unwrap().into_data(),
        };
        match is_exact(device) {
            true => assert_eq!(gradient.as_bytes(), expected.as_bytes(), "{path}"),
            false => gradient.assert_approx_eq::<f32>(&expected, Default::default()),
        }
    }
}

/// Accumulation, exact clipping, loss scaling and hooks at once, against a stock loop that does it all.
fn policies_combine_as_in_a_stock_loop(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let batches = batches(device, 8);
    let max_norm = 0.5;

    let mut stock = copy();
    let mut optimizer = AdamConfig::new().init();
    for group in batches.chunks(3) {
        let mut accumulator = GradientsAccumulator::new();
        for x in group {
            let gradients = stock.loss(x.clone()).backward();
            accumulator.accumulate(&stock, GradientsParams::from_grads(gradients, &stock));
        }
        let mut gradients = accumulator.grads();
        let coefficient = (max_norm / norm(&stock, &mut gradients)).min(1.0);
        scale(&stock, &mut gradients, coefficient);
        // The biases are not trained, the gradients of `output` doubled.
        for bias in [&stock.input.bias, &stock.output.bias] {
            gradients.remove::<1>(bias.as_ref().unwrap().id);
        }
        let id = stock.output.weight.id;
        let doubled = gradients.remove::<2>(id).unwrap().mul_scalar(2.0);
        gradients.register(id, doubled);
        stock = optimizer.step(LEARNING_RATE, stock, gradients);
    }

    let mut fused = FusedOptimizer::new_ok(copy(), AdamConfig::new().init())
        .with_hook(
            ParamGroup::from_predicate("output"),
            hook(|_| Answer::Scale(2.0)),
        )
        .with_hook(ParamGroup::from_predicate("bias"), hook(|_| Answer::Veto))
        .with_config_ok(
            FusedConfig::exact(max_norm)
                .with_loss_scaling(Some(LossScalingConfig::new().with_growth_interval(Some(1)))),
        );
    for (group, scale) in batches.chunks(3).zip([65536.0, 131072.0, 262144.0]) {
        let (last, before) = group.split_last().unwrap();
        for x in before {
            fused.accumulate_ok(|model| model.loss(x.clone()));
        }
        fused.step_repeatable_ok(LEARNING_RATE, |model| model.loss(last.clone()));
        let report = fused.last_step();
        assert!(report.clipping.unwrap() < 1.0);
        assert_eq!(report.loss_scale, Some(scale));
        assert_eq!((report.updated, report.vetoed), (4, 2));
    }
    assert_equal_weights(&stock, &fused.model());
    assert_changed(&initial, &fused.model(), |path| {
        !path.contains("put.bias") // `norm` calls its bias `beta`.
    });
}

fn parameters_beside_the_taps_are_hooked_too(device: &Device) {
    let linear = LinearConfig::new(6, 4).init(device);
    let model = linear.apply_lora(Lora::new(2, 4.0)).unfreeze();
    let x = batches(device, 1).remove(0);
    let noting = Noting::default();
    let base = ParamGroup::from_path("weight");
    let mut fused = FusedOptimizer::new_ok(model.clone(), SgdConfig::new().init())
        .with_hook(ParamGroup::all(), noting.clone())
        .with_hook(base.clone(), hook(|_| Answer::Veto));
    assert_eq!(fused.num_retained(), 1);
    fused.step_ok(LEARNING_RATE, |model| {
        (model.forward(x.clone()) + 1.0).powi_scalar(2).sum()
    });
    assert_eq!(fused.last_step().vetoed, 1);
    assert!(
        noting
            .0
            .lock()
            .unwrap()
            .iter()
            .any(|(path, ..)| path == "weight")
    );
    let after = weights(&fused.model());
    let weight = |all: &[(String, TensorData)]| {
        let found = all.iter().find(|(path, _)| path == "weight");
        found.unwrap().1.clone()
    };
    let before = weights(&model);
    assert_eq!(weight(&before).as_bytes(), weight(&after).as_bytes());
    assert_ne!(before, after);
}

/// The gradient of `input` is not finite; `output` has been updated before.
fn an_anomaly_stops_the_step_at_its_parameter(device: &Device) {
    let initial = Squashed::init(device);
    let before = copy(&initial, || Squashed::init(device));
    let mut fused = FusedOptimizer::new_ok(initial, AdamConfig::new().init())
        .with_hook(ParamGroup::all(), AnomalyCheck);
    let x = infinite(device);
    let error = fused.step(LEARNING_RATE, |model| model.loss(x.clone()));
    let FusedError::GradientNotFinite { path } = error.unwrap_err() else {
        panic!("another error")
    };
    assert!(path.starts_with("input."), "`{path}`");
    assert_changed(&before, &fused.model(), |path| path.starts_with("output"));

    // The step can be repeated with better data.
    let x = batches(device, 1).remove(0);
    fused.step_ok(LEARNING_RATE, |model| model.loss(x.clone()));
    assert_changed(&before, &fused.model(), |_| true);
}

fn statistics_of_gradients_are_right(device: &Device) {
    let model = Network::init(device);
    let x = batches(device, 1).remove(0);
    let gradients = model.loss(x.clone()).backward();
    let gradients = GradientsParams::from_grads(gradients, &model);
    let expected: Vec<f64> = gradients
        .get::<2>(model.input.weight.id)
        .unwrap()
        .into_data()
        .iter::<f64>()
        .collect();

    let statistics = GradientStatistics::new();
    let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init())
        .with_hook(ParamGroup::from_predicate("weight"), statistics.clone());
    fused.step_ok(LEARNING_RATE, |model| model.loss(x.clone()));
    let found = statistics.take();
    let paths: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(paths, ["input.weight", "output.weight"]);
    let count = expected.len() as f64;
    let found = found["input.weight"];
    let near = |a: f64, b: f64| assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{a}, {b}");
    near(
        found.norm,
        expected.iter().map(|g| g * g).sum::<f64>().sqrt(),
    );
    near(found.mean, expected.iter().sum::<f64>() / count);
    near(
        found.largest,
        expected.iter().fold(0.0, |a, g| a.max(g.abs())),
    );
    let zeros = expected.iter().filter(|g| **g == 0.0).count();
    near(found.zeros, zeros as f64 / count);
    assert!(statistics.take().is_empty());
}

/// A layer, and a parameter that has no elements.
#[derive(Module, Debug)]
struct WithNothing {
    layer: burn::nn::Linear,
    nothing: Param<Tensor<2>>,
}

impl WithNothing {
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        self.layer.forward(x).powi_scalar(2).sum() + self.nothing.val().sum()
    }
}

/// On the CPU: Burn's CubeCL backends fail in operations on tensors without elements.
#[test]
#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn a_parameter_without_elements_goes_through_all_policies() {
    for device in [Device::flex().autodiff(), Device::ndarray().autodiff()] {
        all_policies_take_a_parameter_without_elements(&device);
    }
}

fn all_policies_take_a_parameter_without_elements(device: &Device) {
    let statistics = GradientStatistics::new();
    let init = || WithNothing {
        layer: LinearConfig::new(6, 3).init(device),
        nothing: Param::from_tensor(Tensor::zeros([0, 3], device)),
    };
    let fuse = || FusedOptimizer::new_ok(init(), AdamConfig::new().init());
    let trainings = [
        fuse(),
        fuse().with_hook(ParamGroup::all(), AnomalyCheck),
        fuse().with_config_ok(FusedConfig::exact(0.1)),
        fuse().with_config_ok(FusedConfig::lagged(0.1)),
        fuse().with_config_ok(FusedConfig::scaling(LossScalingConfig::new())),
        fuse().with_config_ok(FusedConfig::scaling(
            LossScalingConfig::new().with_overflow(Overflow::SkipParameter),
        )),
    ];
    for fused in trainings {
        let mut fused = fused.with_hook(ParamGroup::all(), statistics.clone());
        for x in batches(device, 2) {
            fused.accumulate_ok(|model| model.loss(x.clone()));
            fused.step_repeatable_ok(LEARNING_RATE, |model| model.loss(x.clone()));
            let seen = statistics.take();
            assert!(seen["layer.weight"].largest > 0.0);
            let nothing = seen["nothing"];
            let numbers = [nothing.norm, nothing.mean, nothing.largest, nothing.zeros];
            assert_eq!(numbers, [0.0; 4]);
        }
    }
}

/// In every format, with states that come from a record, offloaded, on several ranks, in a block.
#[test]
#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn a_parameter_without_elements_is_trained_in_every_way() {
    use backburn::optim::AdamWConfig;

    let device = Device::flex().autodiff();
    let init = |device: &Device| WithNothing {
        layer: LinearConfig::new(6, 3).init(device),
        nothing: Param::from_tensor(Tensor::zeros([0, 3], device)),
    };
    let x = batches(&device, 1).remove(0);
    for states in [StateFormat::Full, StateFormat::Bits8, StateFormat::Bits4] {
        for (weights, dtype) in [
            (WeightFormat::Plain, FloatDType::F32),
            (WeightFormat::Split24, FloatDType::BF16),
            (WeightFormat::Stochastic, FloatDType::BF16),
        ] {
            let config = AdamWConfig::new()
                .with_state_format(states)
                .with_weight_format(weights);
            let model = cast(init(&device), dtype).unwrap();
            let mut fused = FusedOptimizer::new_ok(model, config.init());
            MemoryEstimate::new(&fused.model(), &config.init());
            for _ in 0..2 {
                let x = x.clone().cast(dtype);
                fused.step_ok(LEARNING_RATE, |model| {
                    let run = |model: &WithNothing, x| model.loss(x);
                    gradient_checkpointing(model, x, run)
                });
                let record = fused.to_record();
                fused.load_record_ok(record);
            }
            if weights == WeightFormat::Split24 {
                drop(fused.full_precision_model());
            }
        }
    }
    let ndarray = Device::ndarray().autodiff();
    for offload in [Offload::States, Offload::Updates] {
        let config = OffloadConfig::new(offload).with_min_elements(0);
        let mut fused = FusedOptimizer::new_ok(init(&ndarray), AdamWConfig::new().init())
            .with_config_on_ok(FusedConfig::offload(config), &ndarray);
        let x = Tensor::ones([5, 6], &ndarray);
        for _ in 0..2 {
            fused.step_ok(LEARNING_RATE, |model| model.loss(x.clone()));
        }
    }
    for sharding in [Sharding::State, Sharding::Full] {
        let ranks = [device.clone(), device.clone()];
        let mut fused = FusedReplicas::new_ok(init(&device), AdamWConfig::new().init(), ranks)
            .with_config_ok(FusedConfig::sharded(sharding));
        for _ in 0..2 {
            fused.step_ok(LEARNING_RATE, vec![x.clone(), x.clone()], WithNothing::loss);
        }
    }
}

on_every_backend!(
    a_hook_sees_path_id_value_and_gradient_once,
    policies_combine_as_in_a_stock_loop,
    parameters_beside_the_taps_are_hooked_too,
    an_anomaly_stops_the_step_at_its_parameter,
    statistics_of_gradients_are_right,
);

/// Returns something else than a gradient of the parameter.
struct Wrong(fn(Tensor<1>) -> Tensor<1>);

impl GradientHook for Wrong {
    fn call<const D: usize>(
        &self,
        _parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        let wrong = (self.0)(gradient.flatten(0, D - 1));
        let mut shape = [1; D];
        shape[0] = wrong.dims()[0];
        GradientFlow::Continue(wrong.reshape(shape))
    }
}

#[test]
#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn a_hook_that_returns_another_shape_dtype_or_device_is_refused() {
    let device = Device::flex().autodiff();
    type Change = fn(Tensor<1>) -> Tensor<1>;
    let wrongs: [(&str, Change); 4] = [
        ("another shape", |gradient| {
            Tensor::cat(vec![gradient.clone(), gradient], 0)
        }),
        ("another dtype", |gradient| gradient.cast(FloatDType::F64)),
        ("another device", |gradient| {
            Tensor::from_data(gradient.into_data(), &Device::ndarray())
        }),
        ("autodiff", Tensor::from_inner),
    ];
    for (kind, wrong) in wrongs {
        let initial = Squashed::init(&device);
        let before = copy(&initial, || Squashed::init(&device));
        let mut fused = FusedOptimizer::new_ok(initial, AdamConfig::new().init())
            .with_hook(ParamGroup::from_path("output.bias"), Wrong(wrong));
        let x = batches(&device, 1).remove(0);
        let error = fused.step(LEARNING_RATE, |model| model.loss(x.clone()));
        let Err(FusedError::HookedGradient { path, .. }) = error else {
            panic!("{kind} goes through")
        };
        assert_eq!(path, "output.bias");
        // Its gradient arrives first.
        assert_equal_weights(&before, &fused.model());
    }
}

#[test]
fn a_hook_can_stop_a_step_for_a_reason_of_its_own() {
    let device = Device::flex().autodiff();
    let mut fused = FusedOptimizer::new_ok(Squashed::init(&device), SgdConfig::new().init())
        .with_hook(
            ParamGroup::from_path("input.bias"),
            hook(|_| Answer::Stop("enough")),
        );
    let x = batches(&device, 1).remove(0);
    let error = fused.step(LEARNING_RATE, |model| model.loss(x.clone()));
    let message = error.unwrap_err().to_string();
    assert_says(&message, "`input.bias`: enough");
}
