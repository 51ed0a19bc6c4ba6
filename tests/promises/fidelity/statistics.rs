//! Running statistics belong to the training. A model that was taken from it has its own, and a failed pass restores
//! them. The pairs in `tests/pairs` compare them with stock Burn.

use crate::common::normed::Normed;
use crate::common::*;

const RATE: f64 = 1e-2;

fn init(device: &Device) -> Normed {
    Normed::init(4, 4, device)
}

fn loss(model: &Normed, x: Tensor<2>) -> Tensor<1> {
    let run = |model: &Normed, x| model.norm.forward(model.linear.forward(x).tanh());
    gradient_checkpointing(model, x, run).powi_scalar(3).mean()
}

fn xs(device: &Device) -> Vec<Tensor<2>> {
    randoms(4, [6, 4], device)
}

/// Returns trainings that return their model by different paths.
fn trainings(device: &Device) -> Vec<FusedOptimizer<Normed>> {
    let averaging = WeightAveragingConfig::new().with_decay(Some(0.5));
    let fused = |offload: Option<Offload>| {
        let offload = offload.map(|offload| offload_from(device, offload));
        let config = FusedConfig::averaging(averaging).with_offload(offload);
        let fused = FusedOptimizer::new(init(device), AdamWConfig::new().init()).unwrap();
        fused.with_config_on(config, device).unwrap()
    };
    let offloads = OFFLOADS.map(Some).into_iter();
    [None].into_iter().chain(offloads).map(fused).collect()
}

type Values = Vec<(String, TensorData)>;

fn model_taken_before_more_steps_is_unchanged(device: &Device) {
    let xs = xs(device);
    for mut fused in trainings(device) {
        fused
            .step(RATE, |model| loss(model, xs[0].clone()))
            .unwrap();
        let (model, valid, averaged) = (fused.model(), fused.valid(), fused.averaged());
        let taken = || -> [Values; 3] { [weights(&model), weights(&valid), weights(&averaged)] };
        let before = taken();
        fused
            .step(RATE, |model| loss(model, xs[1].clone()))
            .unwrap();
        assert!(taken() == before);
        assert_changed(&model, &fused.model(), |_| true);

        let nan = Tensor::full([6, 4], f32::NAN, device);
        fused.step(RATE, |model| loss(model, nan)).unwrap();
        assert!(taken() == before);
        let mean = |model: &Normed| model.norm.running_mean.value_sync().into_data();
        assert!(mean(&fused.model()).iter::<f32>().all(f32::is_nan));
        assert!(mean(&model).iter::<f32>().all(f32::is_finite));
    }
}

fn failed_pass_and_dry_run_restore_statistics(device: &Device) {
    let xs = xs(device);
    let of = |fused: &FusedOptimizer<Normed>| {
        let statistics = weights(&fused.model()).into_iter();
        let statistics = statistics.filter(|(path, _)| path.contains("running"));
        statistics.collect::<Values>()
    };
    for mut fused in trainings(device) {
        fused
            .step(RATE, |model| loss(model, xs[0].clone()))
            .unwrap();
        let before = of(&fused);
        fused.dry_run(|model| loss(model, xs[1].clone())).unwrap();
        assert!(of(&fused) == before);
        panic_of(|| {
            fused
                .step(RATE, |model| -> Tensor<1> {
                    let _loss = loss(model, xs[1].clone());
                    panic!("after the forward pass")
                })
                .unwrap()
        });
        assert!(of(&fused) == before);
        fused
            .step(RATE, |model| loss(model, xs[1].clone()))
            .unwrap();
        let before = of(&fused);
        let mut fused = fused.with_hook(ParamGroup::all(), hook(|_| Answer::Stop("the first")));
        let stopped = fused.step(RATE, |model| loss(model, xs[2].clone()));
        assert!(matches!(stopped, Err(FusedError::StoppedByHook { .. })));
        assert!(of(&fused) == before);
    }
}

/// Burn keeps the last update of a statistic pending, and a frozen layer reads the value before it. `valid` merges the update.
fn norm_frozen_in_training_matches_stock(device: &Device) {
    #[derive(Clone, Copy, PartialEq)]
    enum Event {
        Freeze,
        Unfreeze,
        Validate,
        Load,
        Nothing,
    }
    use Event::*;

    fn change(mut model: Normed, event: Event, loaded: &Normed) -> Normed {
        model.norm = match event {
            Freeze => model.norm.freeze(),
            Unfreeze => model.norm.unfreeze(),
            Load => {
                let norm = model.norm.valid().train();
                norm.load_record(loaded.norm.clone().into_record()).freeze()
            }
            _ => model.norm,
        };
        model
    }

    let rows = [
        [Freeze, Nothing, Validate, Nothing],
        [Freeze, Freeze, Unfreeze, Freeze],
        [Freeze, Nothing, Unfreeze, Nothing],
        [Validate, Freeze, Validate, Freeze],
        [Freeze, Load, Unfreeze, Validate],
    ];
    let xs = xs(device);
    let loss = |model: &Normed, x: &Tensor<2>| {
        let y = model.linear.forward(x.clone()).tanh();
        model.norm.forward(y).powi_scalar(3).mean()
    };
    let other = init(device);
    // Between a step and an event, none of these changes what a frozen layer reads.
    let read = |fused: &mut FusedOptimizer<Normed>| drop(fused.model());
    let fail = |fused: &mut FusedOptimizer<Normed>| {
        let untracked = |model: &Normed| loss(model, &xs[0]).detach();
        fused.step(RATE, untracked).unwrap_err();
    };
    let measure = |fused: &mut FusedOptimizer<Normed>| {
        fused.dry_run(|model| loss(model, &xs[0])).unwrap();
    };
    let change_nothing =
        |fused: &mut FusedOptimizer<Normed>| fused.change_model(|model| model).unwrap();
    type Between<'a> = &'a dyn Fn(&mut FusedOptimizer<Normed>);
    let between: [Between<'_>; 5] = [&|_| {}, &read, &fail, &measure, &change_nothing];
    let all = |accumulates| {
        let buffer = FusedConfig::clipping(GlobalNormClippingConfig::ExactInBuffer(1e9));
        let fused = FusedOptimizer::new(init(device), AdamWConfig::new().init()).unwrap();
        let mut all = trainings(device);
        all.push(fused.with_config(buffer).unwrap());
        all.into_iter().map(move |fused| (fused, accumulates))
    };
    for (row, events) in rows.iter().enumerate() {
        for between in between {
            for (mut fused, accumulates) in all(false).chain(all(true)) {
                let mut stock = copy(&fused.model(), || init(device));
                let mut optimizer = AdamWConfig::new().init();
                for event in [Nothing].iter().chain(events) {
                    between(&mut fused);
                    match event {
                        Validate => {
                            let (stock, fused) = (weights(&stock.valid()), weights(&fused.valid()));
                            assert_eq!(stock, fused, "row {row}");
                        }
                        Nothing => {}
                        _ => {
                            stock = change(stock, *event, &other);
                            fused
                                .change_model(|model| change(model, *event, &other))
                                .unwrap();
                        }
                    }
                    for x in &xs {
                        let expected = loss(&stock, x);
                        let gradients = expected.clone().backward();
                        let gradients = GradientsParams::from_grads(gradients, &stock);
                        stock = optimizer.step(RATE, stock, gradients);
                        let run = |model: &Normed| loss(model, x);
                        let found = match accumulates {
                            false => fused.step(RATE, run).unwrap(),
                            true => {
                                let found = fused.accumulate(run).unwrap();
                                fused.step_accumulated(RATE).unwrap();
                                found
                            }
                        };
                        assert_eq!(found.into_data(), expected.into_data(), "row {row}");
                    }
                }
                assert_equal_weights(&stock.valid(), &fused.valid());
            }
        }
    }
}

#[derive(Module, Debug)]
struct Centered {
    norm: BatchNorm,
    mean: Tensor<2>,
    shift: Param<Tensor<1, Int>>,
}

/// Burn gives a constant that was without autodiff another strategy of gradient checkpointing, and refuses to mix two.
fn norm_beside_constant_under_gradient_checkpointing_matches_stock(device: &Device) {
    let device = &device.clone().gradient_checkpointing();
    let init = || Centered {
        norm: BatchNormConfig::new(4).init(device),
        mean: Tensor::full([1, 4], 0.5, device),
        shift: Param::initialized(ParamId::new(), Tensor::arange(0..4, device)),
    };
    let loss = |model: &Centered, x: Tensor<2>| {
        let x = x - model.mean.clone() + model.shift.val().float().unsqueeze();
        model.norm.forward(x).powi_scalar(3).mean()
    };
    let xs = xs(device);
    let mut stock = init();
    let mut fused = FusedOptimizer::new(copy(&stock, init), AdamWConfig::new().init()).unwrap();
    let mut optimizer = AdamWConfig::new().init();
    for x in &xs {
        let gradients = loss(&stock, x.clone()).backward();
        let gradients = GradientsParams::from_grads(gradients, &stock);
        stock = optimizer.step(RATE, stock, gradients);
        fused.step(RATE, |model| loss(model, x.clone())).unwrap();
        fused = fused.with_config(FusedConfig::new()).unwrap();
        fused.change_model(|model| model).unwrap();
        assert_equal_weights(&stock, &fused.model());
    }
    // In stock Burn, too.
    drop(loss(&fused.model(), xs[0].clone()).backward());
}

/// Models that were taken from one training have the same ids.
#[derive(Module, Debug)]
struct Snapshots {
    student: Linear,
    teachers: Vec<BatchNorm>,
}

fn frozen_snapshots_keep_their_statistics(device: &Device) {
    let x = xs(device).remove(0);
    let cubes = |x: Tensor<2>| x.powi_scalar(3).mean();
    let norm: BatchNorm = BatchNormConfig::new(4).init(device);
    let mut donor = FusedOptimizer::new(norm, SgdConfig::new().init()).unwrap();
    let mut snapshot = || {
        donor
            .step(RATE, |norm| cubes(norm.forward(x.clone())))
            .unwrap();
        donor.model().freeze()
    };
    let model = Snapshots {
        teachers: vec![snapshot(), snapshot()],
        student: LinearConfig::new(4, 4).init(device),
    };
    let teachers = weights(&model.teachers);
    let loss = |model: &Snapshots| {
        let taught = model.teachers.iter().map(|it| it.forward(x.clone()));
        let taught = taught.reduce(Tensor::add).unwrap();
        cubes(model.student.forward(x.clone()) - taught)
    };
    let in_buffer = FusedConfig::new();
    let clipping = GlobalNormClippingConfig::ExactInBuffer(1.0);
    let in_buffer = in_buffer.with_clipping(Some(clipping));
    for config in [FusedConfig::exact(1.0), in_buffer] {
        let fused = FusedOptimizer::new(model.clone(), SgdConfig::new().init()).unwrap();
        let mut fused = fused.with_config(config).unwrap();
        fused.dry_run(loss).unwrap();
        for _ in 0..2 {
            fused.step_repeatable(RATE, loss).unwrap();
            assert_eq!(weights(&fused.model().teachers), teachers);
        }
    }
}

/// A net whose statistics make it necessary to restore everything else.
#[derive(Module, Debug)]
struct Teachers {
    norm: BatchNorm,
    teachers: Vec<Linear>,
    dropout: Dropout,
}

/// Burn keeps the id of a parameter in its records.
fn teachers_with_one_id_keep_their_values(device: &Device) {
    let first: Linear = LinearConfig::new(4, 4).init(device);
    let mut second = first.clone();
    second.weight = second.weight.map(|weight| (weight + 1).detach());
    let model = Teachers {
        norm: BatchNormConfig::new(4).init(device),
        teachers: vec![first.freeze(), second.freeze()],
        dropout: DropoutConfig::new(0.5).init().valid(),
    };
    let x = xs(device).remove(0);
    let output = |model: &Teachers| {
        let x = model.teachers.iter().fold(x.clone(), |x, it| it.forward(x));
        model.dropout.forward(x)
    };
    let (expected, teachers) = (output(&model).into_data(), weights(&model.teachers));
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
    for _ in 0..2 {
        assert_eq!(weights(&fused.model().teachers), teachers);
        fused
            .step(RATE, |model| {
                // Also that the dropout is switched off.
                assert_eq!(output(model).into_data(), expected);
                model.norm.forward(output(model)).powi_scalar(3).mean()
            })
            .unwrap();
        fused = fused.with_config(FusedConfig::new()).unwrap();
    }
}

on_every_cpu_backend!(
    norm_beside_constant_under_gradient_checkpointing_matches_stock,
    norm_frozen_in_training_matches_stock,
    failed_pass_and_dry_run_restore_statistics,
    model_taken_before_more_steps_is_unchanged,
    frozen_snapshots_keep_their_statistics,
    teachers_with_one_id_keep_their_values,
);
