//! Gradient sums of replicas equal the same steps in stock Burn.

use std::collections::HashMap;
use std::sync::Arc;

use super::rows::table::offloaded;
use super::*;

/// Tokens, and what their loss is multiplied by.
type Weighed = (Tensor<2, Int>, f32);

fn weighed_loss(model: &Network, (tokens, weight): Weighed) -> Tensor<1> {
    model.loss_in_blocks(tokens) * weight
}

fn weighed(device: &Device, ranks: usize, steps: usize) -> Vec<Vec<Weighed>> {
    let rows: Vec<_> = (0..ranks).map(|rank| 2 + rank).collect();
    weighed_of(device, &rows, steps)
}

fn weighed_of(device: &Device, rows: &[usize], steps: usize) -> Vec<Vec<Weighed>> {
    let step = |_| tokens(device, rows).into_iter().map(|tokens| (tokens, 1.0));
    (0..steps).map(|index| step(index).collect()).collect()
}

/// The gradients of a step by parameter, each with the sum of its squares.
struct Each<'a> {
    gradients: &'a mut GradientsParams,
    factor: f64,
    squares: f64,
}

impl ModuleVisitor for Each<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.squares += gradient.clone().square().sum().into_scalar::<f64>();
            let gradient = gradient.mul_scalar(self.factor);
            self.gradients.register(param.id, gradient);
        }
    }
}

/// Multiplies gradients, and returns the global norm that they had.
fn multiply(model: &Network, gradients: &mut GradientsParams, factor: f64) -> f64 {
    let mut each = Each {
        gradients,
        factor,
        squares: 0.0,
    };
    model.visit(&mut each);
    each.squares.sqrt()
}

/// Burn alone: the gradients of all ranks in all micro-batches of a group are added up in turn, then multiplied by what
/// `factor` makes of the norms so far; none for a step that is skipped.
fn train_reference(
    mut model: Network,
    mut optimizer: ModuleOptimizer,
    groups: &[&[Vec<Weighed>]],
    factor: impl Fn(&[f64]) -> Option<f64>,
) -> Network {
    let mut norms = Vec::new();
    for group in groups {
        let mut sum = GradientsAccumulator::new();
        for (tokens, weight) in group.iter().flatten() {
            let gradients = (model.loss(tokens.clone()) * *weight).backward();
            sum.accumulate(&model, GradientsParams::from_grads(gradients, &model));
        }
        let mut gradients = sum.grads();
        norms.push(multiply(&model, &mut gradients, 1.0));
        if let Some(factor) = factor(&norms) {
            if factor != 1.0 {
                multiply(&model, &mut gradients, factor);
            }
            model = optimizer.step(RATE, model, gradients);
        }
    }
    model
}

/// Calls `test` with replicas of a copy of `initial` in every way of sharing it that adds up in the order of the ranks, with
/// and without offload.
fn in_every_way(
    initial: &Network,
    ranks: usize,
    optimizer: impl Fn() -> ModuleOptimizer,
    test: impl Fn(FusedReplicas<Network>),
) {
    let devices = flex(ranks);
    let everything = Offload::Weights(OffloadedBlocks::All);
    let offloads = [None, Some(Offload::Updates), Some(everything)];
    for (sharding, offload) in [Sharding::State, Sharding::Full]
        .into_iter()
        .flat_map(|sharding| offloads.map(|offload| (sharding, offload)))
    {
        let model = copy(initial, || Network::init(&devices[0]));
        let config = offload.map_or_else(FusedConfig::new, offloaded);
        let fused = FusedReplicas::new_ok(model, optimizer(), devices.clone()).with_config_ok(
            config
                .with_sharding(sharding)
                .with_ownership(Ownership::MainDevice),
        );
        test(fused);
    }
}

#[test]
fn replicas_step_accumulated_equals_stock() {
    let (_alone, device, initial) = begin();
    for ranks in [2, 3] {
        let mut steps = weighed(device, ranks, 5);
        steps[1].pop();
        let groups = [&steps[..3], &steps[3..]];
        let model = copy(&initial, || Network::init(device));
        let expected = train_reference(model, adamw(), &groups, |_| Some(1.0));
        in_every_way(&initial, ranks, adamw, |mut fused| {
            for group in groups {
                for batches in group {
                    fused.accumulate_ok(batches.clone(), weighed_loss);
                }
                fused.step_accumulated_ok(RATE);
            }
            assert_equal_weights(&expected, &fused.model());
            let error = fused.step_accumulated(RATE).unwrap_err();
            assert_eq!(error, FusedError::NothingAccumulated);
        });
    }
}

#[test]
fn one_overflow_anywhere_skips_everywhere() {
    let (_alone, device, initial) = begin();
    let mut steps = weighed_of(device, &[2, 4], 7);
    steps[2][1].1 = f32::INFINITY;
    steps[5][0].1 = f32::INFINITY;
    let groups: Vec<_> = steps.chunks(1).collect();
    let finite = |norms: &[f64]| norms[norms.len() - 1].is_finite().then_some(1.0);
    let model = copy(&initial, || Network::init(device));
    let expected = train_reference(model, adamw(), &groups, finite);
    let config = LossScalingConfig::new()
        .with_initial_scale(1024.0)
        .with_growth_interval(Some(2));
    for overflow in [Overflow::SkipStep, Overflow::SkipParameter] {
        in_every_way(&initial, 2, adamw, |mut fused| {
            let scaling = Some(config.with_overflow(overflow));
            let config = fused.config().clone().with_loss_scaling(scaling);
            fused = fused.with_config_ok(config);
            let mut scales = Vec::new();
            for (index, batches) in steps.iter().enumerate() {
                fused.step_repeatable_ok(RATE, batches.clone(), weighed_loss);
                assert_eq!(fused.last_step().overflowed, index == 2 || index == 5);
                scales.push(fused.last_step().loss_scale.unwrap());
            }
            assert_eq!(
                scales,
                [1024.0, 1024.0, 2048.0, 1024.0, 1024.0, 2048.0, 1024.0]
            );
            assert_equal_weights(&expected, &fused.model());
        });
    }
}

#[test]
fn hooks_are_called_once_with_the_sum() {
    let (_alone, device, initial) = begin();
    let steps = weighed(device, 3, 3);
    let groups: Vec<_> = steps.chunks(1).collect();
    let sgd = || SgdConfig::new().init();
    let model = copy(&initial, || Network::init(device));
    let mut expected = train_reference(model, sgd(), &groups[..1], |_| Some(2.0));
    expected.scale = Param::from_tensor(Tensor::ones([6], device));
    in_every_way(&initial, 3, sgd, |fused| {
        let counts: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
        let counting = counts.clone();
        let doubles = hook(move |it| {
            *counting.lock().unwrap().entry(it.path.into()).or_default() += 1;
            match it.path {
                "scale" => Answer::Veto,
                _ => Answer::Scale(2.0),
            }
        });
        let mut fused = fused.with_hook(ParamGroup::all(), doubles);
        fused.step_ok(RATE, steps[0].clone(), weighed_loss);
        let report = fused.last_step();
        assert_eq!(
            (report.updated, report.vetoed, report.without_gradient),
            (11, 1, 0)
        );
        let counts = counts.lock().unwrap();
        assert_eq!(counts.len(), 12);
        assert!(counts.values().all(|calls| *calls == 1), "{counts:?}");
        assert_equal_weights(&expected, &fused.model());
    });
}

#[test]
fn optimizers_in_formats_equal_themselves_in_stock() {
    let (_alone, device, initial) = begin();
    let steps = weighed(device, 2, 3);
    let groups: Vec<_> = steps.chunks(1).collect();
    let in_bf16 = |model: Network| backburn::cast(model, FloatDType::BF16).unwrap();
    let in_formats = || {
        let config = backburn::optim::AdamWConfig::new().with_state_format(StateFormat::Bits8);
        config.with_weight_format(WeightFormat::Split24).init()
    };
    let model = copy(&initial, || Network::init(device));
    let expected = train_reference(in_bf16(model), in_formats(), &groups, |_| Some(1.0));
    for sharding in [Sharding::State, Sharding::Full] {
        let model = copy(&initial, || Network::init(device));
        let mut fused = FusedReplicas::new_ok(in_bf16(model), in_formats(), flex(2))
            .with_config_ok(FusedConfig::sharded(sharding));
        for batches in &steps {
            fused.step_ok(RATE, batches.clone(), weighed_loss);
        }
        assert_equal_weights(&expected, &fused.model());
    }
}

#[test]
fn a_closure_may_run_the_backward_pass_itself() {
    let (_alone, device, initial) = begin();
    let steps = weighed(device, 2, 3);
    let groups: Vec<_> = steps.chunks(1).collect();
    let model = copy(&initial, || Network::init(device));
    let expected = train_reference(model, adamw(), &groups, |_| Some(1.0));
    in_every_way(&initial, 2, adamw, |mut fused| {
        for batches in &steps {
            fused
                .step_with_backward(RATE, batches.clone(), |model: &Network, batch| {
                    let gradients = weighed_loss(model, batch).backward();
                    ((), GradientsParams::from_grads(gradients, model))
                })
                .unwrap();
        }
        assert_equal_weights(&expected, &fused.model());
    });
}

#[test]
fn what_needs_two_passes_says_so() {
    let _alone = alone();
    let mut fused = FusedReplicas::new_ok(Network::init(&flex(1)[0]), adamw(), flex(2))
        .with_config_ok(FusedConfig::exact(1.0));
    let batches = weighed(&flex(1)[0], 2, 1).remove(0);
    let error = fused.step(RATE, batches, weighed_loss).unwrap_err();
    assert_eq!(error, FusedError::RunsTwice);
}

#[test]
fn averages_of_the_weights_are_those_of_one_device_and_resume_on_any_number() {
    let (_alone, device, initial) = begin();
    let averaging = WeightAveragingConfig::new().with_decay(Some(0.5));
    let averaging = Some(averaging.with_every(2));
    for ranks in [2, 3] {
        let steps = weighed(device, ranks, 6);
        let one = || {
            let model = copy(&initial, || Network::init(device));
            let config = FusedConfig::new().with_averaging(averaging);
            FusedOptimizer::new_ok(model, adamw()).with_config_ok(config)
        };
        let step = |one: &mut FusedOptimizer<Network>, batches: &[Weighed]| {
            let (last, others) = batches.split_last().unwrap();
            for batch in others {
                one.accumulate_ok(|model| weighed_loss(model, batch.clone()));
            }
            one.step_ok(RATE, |model| weighed_loss(model, last.clone()));
        };
        let mut expected = one();
        steps
            .iter()
            .for_each(|batches| step(&mut expected, batches));
        in_every_way(&initial, ranks, adamw, |mut fused| {
            let config = fused.config().clone().with_averaging(averaging);
            fused = fused.with_config_ok(config);
            for batches in &steps[..3] {
                fused.step_ok(RATE, batches.clone(), weighed_loss);
            }
            // On one device, and back, by records.
            let mut alone = one();
            let model = copy(&fused.model(), || Network::init(device));
            alone.change_model_ok(|_| model);
            alone.load_record_ok(fused.to_record());
            assert_equal_weights(&fused.averaged(), &alone.averaged());
            step(&mut alone, &steps[3]);
            fused.step_ok(RATE, steps[3].clone(), weighed_loss);
            assert_equal_weights(&alone.averaged(), &fused.averaged());
            // The ranks share otherwise from now on.
            let sharding = Some(fused.config().sharding).filter(|it| *it == Sharding::State);
            let sharding = sharding.map_or(Sharding::State, |_| Sharding::Full);
            let config = fused.config().clone().with_sharding(sharding);
            let record = fused.to_record();
            fused = fused.with_config_ok(config);
            fused.load_record_ok(record);
            for batches in &steps[4..] {
                fused.step_ok(RATE, batches.clone(), weighed_loss);
            }
            assert_equal_weights(&expected.averaged(), &fused.averaged());
        });
    }
}
