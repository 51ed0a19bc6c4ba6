//! Hooks receive every complete gradient, and may replace or veto it.

use super::*;

fn hook_sees_path_id_value_and_gradient_once(device: &Device) {
    let model = Network::init(device);
    let batches = batches(device, 2);
    let gradients = summed(&model, &batches, Network::loss);

    let noting = Noting::default();
    let mut fused = FusedOptimizer::new(model.clone(), SgdConfig::new().init())
        .unwrap()
        .with_hook(ParamGroup::all(), noting.clone());
    fused.accumulate(|model| model.loss(&batches[0])).unwrap();
    assert!(noting.0.lock().unwrap().is_empty(), "not finished");
    fused
        .step(LEARNING_RATE, |model| model.loss(&batches[1]))
        .unwrap();

    assert_noted_once(&noting, &model, &gradients);
}

/// Panics unless a hook was called once for each parameter, with its path, id, value and gradient.
fn assert_noted_once(noting: &Noting, model: &Network, gradients: &GradientsParams) {
    let notes = noting.0.lock().unwrap();
    assert_eq!(notes.len(), 6);
    let values = weights(model);
    for (path, id, value, gradient) in notes.iter() {
        let (_, expected) = values.iter().find(|(other, _)| other == path).unwrap();
        assert_eq!(value.as_bytes(), expected.as_bytes(), "value of `{path}`");
        let expected = match value.rank() {
            1 => gradients.get::<1>(*id).unwrap().into_data(),
            _ => gradients.get::<2>(*id).unwrap().into_data(),
        };
        match is_exact(&model.devices()[0]) {
            true => assert_eq!(gradient.as_bytes(), expected.as_bytes(), "{path}"),
            false => gradient.assert_approx_eq::<f32>(&expected, Default::default()),
        }
    }
}

fn hook_sees_accumulated_unscaled_and_clipped_gradient(device: &Device) {
    let model = Network::init(device);
    let batches = batches(device, 2);
    let mut gradients = summed(&model, &batches, Network::loss);
    let coefficient = 0.5 / norm(&model, &mut gradients);
    assert!(coefficient < 1.0);
    map_gradients(&model, &mut gradients, |_, gradient| {
        Some(gradient.mul_scalar(coefficient))
    });
    let scaling = LossScalingConfig::new().with_initial_scale(8.0);
    let noting = Noting::default();
    let mut fused = FusedOptimizer::new(model.clone(), SgdConfig::new().init())
        .unwrap()
        .with_hook(ParamGroup::all(), noting.clone())
        .with_config(FusedConfig::exact(0.5).with_loss_scaling(Some(scaling)))
        .unwrap();
    fused.accumulate(|model| model.loss(&batches[0])).unwrap();
    fused
        .step_repeatable(LEARNING_RATE, |model| model.loss(&batches[1]))
        .unwrap();
    assert_noted_once(&noting, &model, &gradients);
}

fn policies_combined_match_stock(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device, 8);
    let max_norm = 0.5;

    let mut stock = initial.copied();
    let mut optimizer = AdamConfig::new().init();
    for group in batches.chunks(3) {
        let mut gradients = summed(&stock, group, Network::loss);
        let coefficient = (max_norm / norm(&stock, &mut gradients)).min(1.0);
        // The biases are not trained, the gradients of `output` doubled.
        let biases = [&stock.input, &stock.output].map(|it| it.bias.as_ref().unwrap().id);
        map_gradients(&stock, &mut gradients, |id, gradient| {
            let gradient = gradient.mul_scalar(coefficient);
            match id {
                id if biases.contains(&id) => None,
                id if id == stock.output.weight.id => Some(gradient.mul_scalar(2.0)),
                _ => Some(gradient),
            }
        });
        stock = optimizer.step(LEARNING_RATE, stock, gradients);
    }

    let [output, bias] = ["output", "bias"].map(ParamGroup::from_predicate);
    let scaling = LossScalingConfig::new().with_growth_interval(Some(1));
    let mut fused = FusedOptimizer::new(initial.copied(), AdamConfig::new().init())
        .unwrap()
        .with_hook(output, hook(|_| Answer::Scale(2.0)))
        .with_hook(bias, hook(|_| Answer::Veto))
        .with_config(FusedConfig::exact(max_norm).with_loss_scaling(Some(scaling)))
        .unwrap();
    for (group, scale) in batches.chunks(3).zip([65536.0, 131072.0, 262144.0]) {
        step_group(&mut fused, LEARNING_RATE, group, Network::loss);
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

fn hook_sees_and_vetoes_retained_parameters(device: &Device) {
    let linear = LinearConfig::new(6, 4).init(device);
    let model = linear.apply_lora(Lora::new(2, 4.0)).unfreeze();
    let x = batches(device, 1).remove(0);
    let noting = Noting::default();
    let base = ParamGroup::from_path("weight");
    let mut fused = FusedOptimizer::new(model.clone(), SgdConfig::new().init())
        .unwrap()
        .with_hook(ParamGroup::all(), noting.clone())
        .with_hook(base, hook(|_| Answer::Veto));
    assert_eq!(fused.num_retained(), 1);
    for _ in 0..2 {
        fused
            .step(LEARNING_RATE, |model| {
                (model.forward(x.clone()) + 1.0).powi_scalar(2).sum()
            })
            .unwrap();
        assert_eq!(fused.last_step().vetoed, 1);
    }
    let notes = noting.0.lock().unwrap();
    assert!(notes.iter().any(|(path, ..)| path == "weight"));
    assert_changed(&model, &fused.model(), |path| path != "weight");
}

/// The gradient of `input` is not finite. `output` is updated before.
fn not_finite_gradient_stops_step_at_its_parameter(device: &Device) {
    for is_checked in [true, false] {
        let initial = Squashed::init(device);
        let before = initial.copied();
        let fused = FusedOptimizer::new(initial, AdamConfig::new().init()).unwrap();
        let mut fused = match is_checked {
            true => fused.with_hook(ParamGroup::all(), AnomalyCheck),
            false => fused.with_config(FusedConfig::lagged(1.0)).unwrap(),
        };
        let error = fused.step(LEARNING_RATE, |model| model.loss(&infinite(device)));
        let path = match error.unwrap_err() {
            FusedError::GradientNotFinite { path } => path,
            FusedError::UpdatedNotFinite { norm, path } if !is_checked && !is_exact(device) => {
                assert!(!norm.is_finite() && path.starts_with("input."), "{path}");
                continue;
            }
            error => panic!("{error:?}"),
        };
        assert!(path.starts_with("input."), "{path}");
        assert_changed(&before, &fused.model(), |path| path.starts_with("output"));

        // The step can be repeated with better data.
        fused
            .step(LEARNING_RATE, |model| model.loss(&batches(device, 1)[0]))
            .unwrap();
        assert_changed(&before, &fused.model(), |_| true);
    }
}

fn gradient_statistics_match_those_of_stock(device: &Device) {
    let model = Network::init(device);
    // Without the first input, some gradients are zero.
    let batches: Vec<_> = batches(device, 1)
        .into_iter()
        .map(|it| it.slice_fill([0..5, 0..1], 0.0))
        .collect();
    let gradients = summed(&model, &batches, Network::loss);
    let gradient = gradients.get::<2>(model.input.weight.id).unwrap();
    let expected: Vec<f64> = gradient.into_data().iter().collect();

    let statistics = GradientStatistics::new();
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
        .unwrap()
        .with_hook(ParamGroup::from_predicate("weight"), statistics.clone());
    fused
        .step(LEARNING_RATE, |model| model.loss(&batches[0]))
        .unwrap();
    let found = statistics.take();
    let paths: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(paths, ["input.weight", "output.weight"]);
    let (found, count) = (found["input.weight"], expected.len() as f64);
    let zeros = expected.iter().filter(|g| **g == 0.0).count();
    assert!((1..expected.len()).contains(&zeros));
    for (found, expected) in [
        (
            found.norm,
            expected.iter().map(|g| g * g).sum::<f64>().sqrt(),
        ),
        (found.mean, expected.iter().sum::<f64>() / count),
        (
            found.largest,
            expected.iter().fold(0.0, |a, g| a.max(g.abs())),
        ),
        (found.zeros, zeros as f64 / count),
    ] {
        let is_near = (found - expected).abs() <= 1e-5 * (1.0 + expected.abs());
        assert!(is_near, "{found}, not {expected}");
    }
    assert!(statistics.take().is_empty());
}

/// A layer, and a parameter that has no elements.
#[derive(Module, Debug)]
struct WithNothing {
    layer: Linear,
    nothing: Param<Tensor<2>>,
}

impl WithNothing {
    fn init(device: &Device) -> Self {
        Self {
            layer: LinearConfig::new(6, 3).init(device),
            nothing: Param::from_tensor(Tensor::zeros([0, 3], device)),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        self.layer.forward(x).powi_scalar(2).sum() + self.nothing.val().sum()
    }
}

/// On the CPU, because Burn's CubeCL backends fail in operations on tensors without elements.
#[test]
fn parameter_without_elements_passes_all_policies() {
    for device in cpus() {
        let skips = LossScalingConfig::new().with_overflow(Overflow::SkipParameter);
        let configs = [
            FusedConfig::new(),
            FusedConfig::exact(0.1),
            FusedConfig::lagged(0.1),
            FusedConfig::scaling(LossScalingConfig::new()),
            FusedConfig::scaling(skips),
        ];
        for config in configs {
            let statistics = GradientStatistics::new();
            let model = WithNothing::init(&device);
            let mut fused = FusedOptimizer::new(model, AdamConfig::new().init())
                .unwrap()
                .with_config(config)
                .unwrap()
                .with_hook(ParamGroup::all(), AnomalyCheck)
                .with_hook(ParamGroup::all(), statistics.clone());
            for x in batches(&device, 2) {
                fused.accumulate(|model| model.loss(x.clone())).unwrap();
                fused
                    .step_repeatable(LEARNING_RATE, |model| model.loss(x.clone()))
                    .unwrap();
                let seen = statistics.take();
                assert!(seen["layer.weight"].largest > 0.0);
                let nothing = seen["nothing"];
                let numbers = [nothing.norm, nothing.mean, nothing.largest, nothing.zeros];
                assert_eq!(numbers, [0.0; 4]);
            }
        }
    }
}

/// In every format, with states that come from a record, offloaded, on several ranks, in a block.
#[test]
fn parameter_without_elements_matches_stock_in_every_way() {
    let [device, ndarray] = cpus();
    let x = batches(&device, 1).remove(0);
    let loss = |model: &WithNothing, x: &Tensor<2>| model.loss(x.clone());
    // Trains stock Burn with the sum over this number of ranks.
    let stock = |initial: &WithNothing, mut optimizer: ModuleOptimizer, x: &Tensor<2>, ranks| {
        let group = vec![x.clone(); ranks];
        let step = |model, _| step_stock(model, &mut optimizer, LEARNING_RATE, &group, loss);
        (0..2).fold(initial.clone(), step)
    };
    for states in [StateFormat::Full, StateFormat::Bits8, StateFormat::Bits4] {
        for (weights, dtype) in [
            (WeightFormat::Plain, FloatDType::F32),
            (WeightFormat::Split24, FloatDType::BF16),
            (WeightFormat::Stochastic, FloatDType::BF16),
        ] {
            let config = optim::AdamWConfig::new()
                .with_state_format(states)
                .with_weight_format(weights);
            let initial = cast(WithNothing::init(&device), dtype).unwrap();
            let x = x.clone().cast(dtype);
            let expected = stock(&initial, config.init(), &x, 1);
            let mut fused = FusedOptimizer::new(initial.clone(), config.init()).unwrap();
            MemoryEstimate::new(&fused.model(), &config.init());
            for _ in 0..2 {
                fused
                    .step(LEARNING_RATE, |model| {
                        gradient_checkpointing(model, x.clone(), WithNothing::loss)
                    })
                    .unwrap();
                let record = fused.to_record();
                fused.load_record(record).unwrap();
            }
            println!("{states:?}, {weights:?}");
            assert_equal_weights(&expected, &fused.model());
            if weights == WeightFormat::Split24 {
                drop(fused.full_precision_model());
            }
        }
    }
    let adamw = optim::AdamWConfig::new().init();
    for offload in [Offload::States, Offload::Updates] {
        let config = OffloadConfig::new(offload).with_min_elements(0);
        let initial = WithNothing::init(&ndarray);
        let x = batches(&ndarray, 1).remove(0);
        let expected = stock(&initial, adamw.clone(), &x, 1);
        let mut fused = FusedOptimizer::new(initial, adamw.clone())
            .unwrap()
            .with_config_on(FusedConfig::offload(config), &ndarray)
            .unwrap();
        for _ in 0..2 {
            fused
                .step(LEARNING_RATE, |model| model.loss(x.clone()))
                .unwrap();
        }
        assert_equal_weights(&expected, &fused.model());
    }
    for sharding in [Sharding::State, Sharding::Full] {
        let ranks = [device.clone(), device.clone()];
        let initial = WithNothing::init(&device);
        let expected = stock(&initial, adamw.clone(), &x, ranks.len());
        let mut fused = FusedReplicas::new(initial, adamw.clone(), ranks)
            .unwrap()
            .with_config(FusedConfig::sharded(sharding))
            .unwrap();
        for _ in 0..2 {
            fused
                .step(LEARNING_RATE, vec![x.clone(), x.clone()], WithNothing::loss)
                .unwrap();
        }
        assert_equal_weights(&expected, &fused.model());
    }
}

on_every_backend!(
    hook_sees_path_id_value_and_gradient_once,
    hook_sees_accumulated_unscaled_and_clipped_gradient,
    policies_combined_match_stock,
    hook_sees_and_vetoes_retained_parameters,
    not_finite_gradient_stops_step_at_its_parameter,
    gradient_statistics_match_those_of_stock,
);

/// A hook that returns a tensor that is not a gradient of the parameter.
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
fn hook_gradient_of_another_kind_is_refused() {
    let device = flex();
    type Change = fn(Tensor<1>) -> Tensor<1>;
    let wrongs: [(&str, Change); 4] = [
        ("another shape", |gradient| {
            Tensor::cat(vec![gradient.clone(), gradient], 0)
        }),
        ("another dtype", |gradient| gradient.cast(FloatDType::F64)),
        ("another device", |gradient| {
            Tensor::from_data(gradient.into_data(), &cpus()[1].clone().inner())
        }),
        ("autodiff", Tensor::from_inner),
    ];
    for (kind, wrong) in wrongs {
        let initial = Squashed::init(&device);
        let before = initial.copied();
        let mut fused = FusedOptimizer::new(initial, AdamConfig::new().init())
            .unwrap()
            .with_hook(ParamGroup::from_path("output.bias"), Wrong(wrong));
        let error = fused.step(LEARNING_RATE, |model| model.loss(&batches(&device, 1)[0]));
        let Err(FusedError::HookedGradient { path, .. }) = error else {
            panic!("{kind} goes through")
        };
        assert_eq!(path, "output.bias");
        // Its gradient arrives first.
        assert_equal_weights(&before, &fused.model());
    }
}
