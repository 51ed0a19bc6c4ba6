//! Accumulation in the optimizer state follows its formula.

use std::collections::HashMap;

use backburn::optim::{
    AccumulateInState, AdamConfig, AdamWConfig, ElementWiseOptimizer, SgdConfig,
};
use burn::optim::decay::WeightDecayConfig;

use super::*;

fn groups(device: &Device) -> Vec<Vec<Tensor<2>>> {
    [3, 1, 2, 3].map(|size| batches(device, size)).into()
}

fn train(fused: &mut FusedOptimizer<Squashed>, groups: &[Vec<Tensor<2>>], rate: f64) {
    let updates = fused.num_released() + fused.num_retained();
    for group in groups {
        let (last, before) = group.split_last().unwrap();
        for x in before {
            let weights_before = weights(&fused.model());
            fused.accumulate(|model| model.loss(x)).unwrap();
            assert_eq!(fused.last_step().updated, 0);
            let same = weights_before == weights(&fused.model());
            assert!(same, "only the last micro-batch moves the parameters");
        }
        fused.step(rate, |model| model.loss(last)).unwrap();
        assert_eq!(fused.last_step().updated, updates);
    }
}

fn stock(
    model: Squashed,
    mut optimizer: ModuleOptimizer,
    groups: &[Vec<Tensor<2>>],
    rate: f64,
) -> Squashed {
    groups.iter().fold(model, |model, group| {
        step_stock(model, &mut optimizer, rate, group, Squashed::loss)
    })
}

const BETA_1: f32 = 0.9;
const BETA_2: f32 = 0.999;
const EPSILON: f32 = 1e-5;
const DECAY: f32 = 0.01;

/// Steps every parameter by the formula of AdamA, in f32 and in the order of Burn's Adam: with the decoupled weight decay and
/// epsilon of AdamW, or as Adam.
fn reference(mut model: Squashed, groups: &[Vec<Tensor<2>>], decoupled: bool) -> Squashed {
    let host = |row: Tensor<1>| -> Vec<f32> { row.into_data().iter().collect() };
    let mut moments = HashMap::new();
    for (group, time) in groups.iter().zip(1..) {
        let mut gradients: HashMap<ParamId, Vec<Vec<f32>>> = HashMap::new();
        for x in group {
            let mut of_batch = summed(&model, std::slice::from_ref(x), Squashed::loss);
            map_gradients(&model, &mut of_batch, |id, gradient| {
                gradients.entry(id).or_default().push(host(gradient));
                None
            });
        }
        let (bias_1, bias_2) = (1.0 - BETA_1.powi(time), 1.0 - BETA_2.powi(time));
        let rate = LEARNING_RATE as f32;
        model = map_values(model, |id, value| {
            let device = value.device();
            let mut parameter = host(value);
            let zeros = || vec![0.0; parameter.len()];
            let (m, v) = moments.entry(id).or_insert_with(|| (zeros(), zeros()));
            for (index, gradient) in gradients[&id].iter().enumerate() {
                for ((m, v), g) in m.iter_mut().zip(v.iter_mut()).zip(gradient) {
                    if index == 0 {
                        (*m, *v) = (*m * BETA_1, *v * BETA_2);
                    }
                    *m += g * (1.0 - BETA_1);
                    *v += g * g * (1.0 - BETA_2);
                }
            }
            for ((parameter, m), v) in parameter.iter_mut().zip(m).zip(v) {
                if decoupled {
                    let delta = *m / bias_1 / ((*v / bias_2).sqrt() + EPSILON);
                    let decay = 1.0 - LEARNING_RATE * f64::from(DECAY);
                    *parameter = *parameter * decay as f32 - delta * rate;
                } else {
                    let root = bias_2.sqrt();
                    let delta = *m * (root / bias_1) / (v.sqrt() + EPSILON * root);
                    *parameter -= delta * rate;
                }
            }
            Tensor::from_data(&parameter[..], &device)
        });
    }
    model
}

/// Parameters with a reparameterization are leaves and updated at the end of the pass.
fn in_state_moments_follow_formula_of_adam_a(device: &Device) {
    let plain = || Squashed::init(device);
    let adapted = || plain().apply_lora(Lora::new(2, 4.0)).unfreeze();
    let inits: [(&dyn Fn() -> Squashed, _); 2] = [(&plain, 0), (&adapted, 2)];
    let groups = groups(device);
    for (init, retained) in inits {
        let initial = init();
        let copy = || copy(&initial, init);
        let adam = AdamConfig::new().build();
        let adam = FusedOptimizer::accumulating_in_state(copy(), adam).unwrap();
        let adam_w = AdamWConfig::new().with_weight_decay(DECAY).build();
        let adam_w = FusedOptimizer::accumulating_in_state(copy(), adam_w).unwrap();
        for (mut fused, decoupled) in [(adam, false), (adam_w, true)] {
            assert_eq!(fused.num_retained(), retained);
            train(&mut fused, &groups, LEARNING_RATE);
            let expected = reference(copy(), &groups, decoupled);
            assert_equal_weights(&expected, &fused.model());
        }
    }
}

fn in_state_velocity_takes_sum_of_gradients(device: &Device) {
    let initial = Squashed::init(device);
    let groups = groups(device);
    // Small, so that rounding does not grow from step to step.
    let rate = 1e-3;
    // With Burn's default dampening, which does not apply to the first group.
    let momentum = Some(MomentumConfig::new());
    let decay = Some(WeightDecayConfig::new(0.01));
    let burns = burn::optim::SgdConfig::new().with_momentum(momentum.clone());
    let burns = burns.with_weight_decay(decay.clone()).init();
    let ours = SgdConfig::new().with_momentum(momentum);
    let ours = ours.with_weight_decay(decay).build();
    let stock = stock(initial.copied(), burns, &groups, rate);
    let mut fused = FusedOptimizer::accumulating_in_state(initial.copied(), ours).unwrap();
    train(&mut fused, &groups, rate);
    // The terms of a sum have another order, so results are equal except for rounding.
    assert_near_weights(&stock, &fused.model(), 1e-5, 1e-5);
}

fn in_state_without_micro_batches_matches_stock(device: &Device) {
    let groups: Vec<_> = batches(device, 5).into_iter().map(|x| vec![x]).collect();
    let assert_same = |burns: ModuleOptimizer, ours: &dyn Fn(Squashed) -> FusedOptimizer<_>| {
        let initial = Squashed::init(device);
        let mut fused = ours(initial.copied());
        train(&mut fused, &groups, LEARNING_RATE);
        let stock = stock(initial, burns, &groups, LEARNING_RATE);
        assert_equal_weights(&stock, &fused.model());
    };
    let burns = burn::optim::AdamConfig::new().with_amsgrad(true).init();
    assert_same(burns, &|model| {
        let adam = AdamConfig::new().with_amsgrad(true).build();
        FusedOptimizer::accumulating_in_state(model, adam).unwrap()
    });
    assert_same(burn::optim::AdamWConfig::new().init(), &|model| {
        FusedOptimizer::accumulating_in_state(model, AdamWConfig::new().build()).unwrap()
    });
    let momentum = Some(MomentumConfig::new());
    let burns = burn::optim::SgdConfig::new().with_momentum(momentum.clone());
    assert_same(burns.init(), &|model| {
        let sgd = SgdConfig::new().with_momentum(momentum.clone()).build();
        FusedOptimizer::accumulating_in_state(model, sgd).unwrap()
    });
}

fn in_state_no_gradient_in_last_micro_batch_is_stepped(device: &Device) {
    let initial = Squashed::init(device);
    let batches = batches(device, 2);
    let loss = |model: &Squashed, index: &usize| match index {
        0 => model.loss(&batches[0]),
        _ => model.input.forward(batches[1].clone()).square().sum(),
    };
    let momentum = Some(MomentumConfig::new());
    let burns = burn::optim::SgdConfig::new().with_momentum(momentum.clone());
    let stock = step_stock(
        initial.copied(),
        &mut burns.init(),
        LEARNING_RATE,
        &[0, 1],
        loss,
    );

    let sgd = SgdConfig::new().with_momentum(momentum).build();
    let mut fused = FusedOptimizer::accumulating_in_state(initial.copied(), sgd.clone()).unwrap();
    step_group(&mut fused, LEARNING_RATE, &[0, 1], loss);
    assert_eq!(fused.last_step().updated, 4);
    assert_eq!(fused.last_step().without_gradient, 0);
    assert_equal_weights(&stock, &fused.model());

    // The same holds without a last micro-batch.
    let mut fused = FusedOptimizer::accumulating_in_state(initial.copied(), sgd).unwrap();
    fused.accumulate(|model| loss(model, &0)).unwrap();
    fused.accumulate(|model| loss(model, &1)).unwrap();
    fused.step_accumulated(LEARNING_RATE).unwrap();
    // Updated in place, where the backend tells.
    assert!(fused.last_step().copied.is_none_or(|copied| copied == 0));
    assert_equal_weights(&stock, &fused.model());
    assert_nothing_accumulated(&mut fused);

    // And with another config in between.
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let mut fused = FusedOptimizer::accumulating_in_state(initial.copied(), sgd.build()).unwrap();
    fused.accumulate(|model| loss(model, &0)).unwrap();
    let mut fused = fused.with_config(FusedConfig::new()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let saved = Checkpoint::at(folder.path()).save(&fused, &Progress::new(1));
    assert_matches!(saved, Err(CheckpointError::Accumulated));
    fused.step(LEARNING_RATE, |model| loss(model, &1)).unwrap();
    assert_equal_weights(&stock, &fused.model());
}

fn in_state_record_continues_in_stock(device: &Device) {
    let groups = groups(device);
    let adam_w = AdamWConfig::new();
    let in_state = |model| FusedOptimizer::accumulating_in_state(model, adam_w.build()).unwrap();
    let mut fused = in_state(Squashed::init(device));
    train(&mut fused, &groups, LEARNING_RATE);

    let x = &groups[1];
    let burns = burn::optim::AdamWConfig::new().init();
    let mut burns = burns.load_record(fused.to_record());
    let model = fused.model().copied();
    let stock = step_stock(model, &mut burns, LEARNING_RATE, x, Squashed::loss);
    let mut again = in_state(fused.model().copied());
    again.load_record(fused.to_record()).unwrap();
    step_group(&mut again, LEARNING_RATE, x, Squashed::loss);
    assert_equal_weights(&stock, &again.model());

    // An unfinished group is dropped with its state.
    again.accumulate(|model| model.loss(&x[0])).unwrap();
    again.load_record(fused.to_record()).unwrap();
    assert_nothing_accumulated(&mut again);
}

on_every_backend!(
    in_state_moments_follow_formula_of_adam_a,
    in_state_velocity_takes_sum_of_gradients,
    in_state_without_micro_batches_matches_stock,
    in_state_no_gradient_in_last_micro_batch_is_stepped,
    in_state_record_continues_in_stock,
);

#[test]
fn in_state_optimizer_without_fitting_state_is_refused() {
    fn assert_refused(optimizer: ElementWiseOptimizer<impl AccumulateInState>, words: &str) {
        let model = Squashed::init(&flex());
        let error = FusedOptimizer::accumulating_in_state(model, optimizer).unwrap_err();
        assert_matches!(error, FusedError::NotInState { .. });
        assert_says(&error, words);
    }
    assert_refused(SgdConfig::new().build(), "without momentum");
    let nesterov = MomentumConfig::new().with_nesterov(true);
    let sgd = SgdConfig::new().with_momentum(Some(nesterov));
    assert_refused(sgd.build(), "Nesterov");
    let decay = Some(WeightDecayConfig::new(0.1));
    let decayed = AdamConfig::new().with_weight_decay(decay);
    assert_refused(decayed.build(), "use `AdamW`");
    let cautious = AdamWConfig::new().with_cautious_weight_decay(true);
    assert_refused(cautious.build(), "update of the whole batch");
    let adam = AdamConfig::new().with_epsilon(0.0);
    assert_refused(adam.build(), "`epsilon` is 0");
    let adamw = AdamWConfig::new().with_epsilon(0.0);
    assert_refused(adamw.build(), "`epsilon` is 0");
    let clipping = || Some(burn::grad_clipping::GradientClippingConfig::Norm(1.0));
    let adam = AdamConfig::new().with_grad_clipping(clipping());
    assert_refused(adam.build(), "`GlobalNormClippingConfig::Lagged`");
    let adamw = AdamWConfig::new().with_grad_clipping(clipping());
    assert_refused(adamw.build(), "`GlobalNormClippingConfig::Lagged`");
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let sgd = sgd.with_gradient_clipping(clipping());
    assert_refused(sgd.build(), "`GlobalNormClippingConfig::Lagged`");
}

#[test]
fn in_state_policies_that_need_sum_are_refused() {
    let device = flex();
    let fused = || {
        let adam = AdamConfig::new().build();
        FusedOptimizer::accumulating_in_state(Squashed::init(&device), adam).unwrap()
    };
    let error = fused().with_config(FusedConfig::exact(1.0)).unwrap_err();
    assert_says(&error, "Lagged");
    let skipping = FusedConfig::scaling(LossScalingConfig::new());
    assert_says(&fused().with_config(skipping).unwrap_err(), "SkipParameter");

    // A step without a gradient leaves the norm of the last micro-batch.
    let max_norm = 1e-3;
    let mut lagged = fused().with_config(FusedConfig::lagged(max_norm)).unwrap();
    let x = &groups(&device)[0][0];
    lagged.accumulate(|model| model.loss(x)).unwrap();
    let norm = lagged.last_step().gradient_norm.unwrap();
    lagged.step_accumulated(LEARNING_RATE).unwrap();
    assert_eq!(lagged.last_step().gradient_norm, None);
    lagged.step(LEARNING_RATE, |model| model.loss(x)).unwrap();
    assert_eq!(lagged.last_step().clipping, Some(max_norm / norm));

    let scaling = LossScalingConfig::new().with_overflow(Overflow::SkipParameter);
    let config = FusedConfig::lagged(1.0).with_loss_scaling(Some(scaling));
    let mut fused = fused().with_config(config).unwrap();
    train(&mut fused, &groups(&device), LEARNING_RATE);
    assert!(fused.last_step().gradient_norm.is_some());
}
