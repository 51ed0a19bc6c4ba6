//! Accumulation in the optimizer state follows its formula.

use std::collections::HashMap;

use backburn::optim::{
    AccumulateInState, AdamConfig, AdamWConfig, ElementWiseOptimizer, SgdConfig,
};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::decay::WeightDecayConfig;

use super::*;
use crate::backends::on_every_backend;

const SIZES: [usize; 4] = [3, 1, 2, 3];

fn groups(device: &Device) -> Vec<Vec<Tensor<2>>> {
    let mut batches = batches(device, SIZES.iter().sum()).into_iter();
    SIZES
        .map(|size| batches.by_ref().take(size).collect())
        .into()
}

fn train(fused: &mut FusedOptimizer<Squashed>, groups: &[Vec<Tensor<2>>], rate: f64) {
    for group in groups {
        let (last, before) = group.split_last().unwrap();
        for x in before {
            let weights_before = weights(&fused.model());
            fused.accumulate_ok(|model| model.loss(x.clone()));
            assert_eq!(fused.last_step().updated, 0);
            let same = weights_before == weights(&fused.model());
            assert!(same, "only the last micro-batch moves the parameters");
        }
        fused.step_ok(rate, |model| model.loss(last.clone()));
        assert_eq!(fused.last_step().updated, 4);
    }
}

/// The state of a parameter on the host: its two moments.
type Moments = (Vec<f32>, Vec<f32>);

/// Steps every parameter by the formula of AdamA, in f32 and in the order of Burn's Adam.
struct Reference<'a> {
    gradients: &'a [GradientsParams],
    moments: &'a mut HashMap<ParamId, Moments>,
    time: i32,
    /// Decoupled weight decay and epsilon of AdamW; Adam otherwise.
    decoupled: bool,
}

const BETA_1: f32 = 0.9;
const BETA_2: f32 = 0.999;
const EPSILON: f32 = 1e-5;
const DECAY: f32 = 0.01;

impl ModuleMapper for Reference<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let (shape, device) = (value.shape(), value.device());
        let host = |tensor: Tensor<D>| -> Vec<f32> { tensor.into_data().iter().collect() };
        let mut parameter = host(value.inner());
        let zeros = || vec![0.0; parameter.len()];
        let (m, v) = self.moments.entry(id).or_insert_with(|| (zeros(), zeros()));
        for (index, gradients) in self.gradients.iter().enumerate() {
            let gradient = host(gradients.get::<D>(id).expect("every parameter has one"));
            for ((m, v), g) in m.iter_mut().zip(v.iter_mut()).zip(gradient) {
                if index == 0 {
                    (*m, *v) = (*m * BETA_1, *v * BETA_2);
                }
                *m += g * (1.0 - BETA_1);
                *v += g * g * (1.0 - BETA_2);
            }
        }
        let (bias_1, bias_2) = (1.0 - BETA_1.powi(self.time), 1.0 - BETA_2.powi(self.time));
        let rate = LEARNING_RATE as f32;
        for ((parameter, m), v) in parameter.iter_mut().zip(m).zip(v) {
            if self.decoupled {
                let delta = *m / bias_1 / ((*v / bias_2).sqrt() + EPSILON);
                let decay = 1.0 - LEARNING_RATE * f64::from(DECAY);
                *parameter = *parameter * decay as f32 - delta * rate;
            } else {
                let root = bias_2.sqrt();
                let delta = *m * (root / bias_1) / (v.sqrt() + EPSILON * root);
                *parameter -= delta * rate;
            }
        }
        let value = Tensor::from_data(TensorData::new(parameter, shape), &device);
        Param::from_mapped_value(id, value.require_grad(), mapper)
    }
}

fn reference(mut model: Squashed, groups: &[Vec<Tensor<2>>], decoupled: bool) -> Squashed {
    let mut moments = HashMap::new();
    for (group, time) in groups.iter().zip(1..) {
        let gradients = group.iter().map(|x| {
            let gradients = model.loss(x.clone()).backward();
            GradientsParams::from_grads(gradients, &model)
        });
        let gradients: Vec<_> = gradients.collect();
        model = model.map(&mut Reference {
            gradients: &gradients,
            moments: &mut moments,
            time,
            decoupled,
        });
    }
    model
}

fn moments_take_the_gradients_by_the_formula_of_adam_a(device: &Device) {
    let initial = Squashed::init(device);
    let copy = || copy(&initial, || Squashed::init(device));
    let groups = groups(device);
    let adam = AdamConfig::new().build();
    let mut fused = FusedOptimizer::accumulating_in_state_ok(copy(), adam);
    train(&mut fused, &groups, LEARNING_RATE);
    assert_equal_weights(&reference(copy(), &groups, false), &fused.model());

    let adam_w = AdamWConfig::new().with_weight_decay(DECAY).build();
    let mut fused = FusedOptimizer::accumulating_in_state_ok(copy(), adam_w);
    train(&mut fused, &groups, LEARNING_RATE);
    assert_equal_weights(&reference(copy(), &groups, true), &fused.model());
}

/// Parameters that carry a reparameterization are leaves, stepped at the end of the pass.
fn a_trained_lora_base_accumulates_in_the_state_too(device: &Device) {
    let adapted = || {
        let adapted = Squashed::init(device).apply_lora(Lora::new(2, 4.0));
        adapted.unfreeze()
    };
    let initial = adapted();
    let copy = || copy(&initial, adapted);
    let groups = groups(device);
    let adam = AdamConfig::new().build();
    let mut fused = FusedOptimizer::accumulating_in_state_ok(copy(), adam);
    assert_eq!(fused.num_retained(), 2);
    let updates = fused.num_released() + fused.num_retained();
    for group in &groups {
        let (last, before) = group.split_last().unwrap();
        for x in before {
            let weights_before = weights(&fused.model());
            fused.accumulate_ok(|model| model.loss(x.clone()));
            assert!(weights_before == weights(&fused.model()));
        }
        fused.step_ok(LEARNING_RATE, |model| model.loss(last.clone()));
        assert_eq!(fused.last_step().updated, updates);
    }
    assert_equal_weights(&reference(copy(), &groups, false), &fused.model());
}

fn stock(
    mut model: Squashed,
    mut optimizer: ModuleOptimizer,
    groups: &[Vec<Tensor<2>>],
    rate: f64,
) -> Squashed {
    for group in groups {
        let mut accumulator = GradientsAccumulator::new();
        for x in group {
            let gradients = model.loss(x.clone()).backward();
            accumulator.accumulate(&model, GradientsParams::from_grads(gradients, &model));
        }
        model = optimizer.step(rate, model, accumulator.grads());
    }
    model
}

fn velocity_takes_the_gradients_as_their_sum(device: &Device) {
    let initial = Squashed::init(device);
    let copy = || copy(&initial, || Squashed::init(device));
    let groups = groups(device);
    // Small, so that rounding does not grow from step to step.
    let rate = 1e-3;
    // With Burn's default dampening, which spares the first group.
    let momentum = MomentumConfig::new();
    let burns = burn::optim::SgdConfig::new()
        .with_momentum(Some(momentum.clone()))
        .with_weight_decay(Some(WeightDecayConfig::new(0.01)));
    let ours = SgdConfig::new()
        .with_momentum(Some(momentum))
        .with_weight_decay(Some(WeightDecayConfig::new(0.01)));
    let stock = stock(copy(), burns.init(), &groups, rate);
    let mut fused = FusedOptimizer::accumulating_in_state_ok(copy(), ours.build());
    train(&mut fused, &groups, rate);
    // The terms of a sum in another order: equal but for rounding.
    assert_near_weights(&stock, &fused.model(), 1e-5, 1e-5);
}

fn without_micro_batches_it_is_the_optimizer_itself(device: &Device) {
    fn assert_same<R: AccumulateInState>(
        device: &Device,
        burns: ModuleOptimizer,
        ours: impl Fn() -> ElementWiseOptimizer<R>,
    ) {
        let initial = Squashed::init(device);
        let copy = || copy(&initial, || Squashed::init(device));
        let groups: Vec<_> = batches(device, 5).into_iter().map(|x| vec![x]).collect();
        let stock = stock(copy(), burns, &groups, LEARNING_RATE);
        let mut fused = FusedOptimizer::accumulating_in_state_ok(copy(), ours());
        train(&mut fused, &groups, LEARNING_RATE);
        assert_equal_weights(&stock, &fused.model());
    }
    let momentum = || Some(MomentumConfig::new());
    let stock = burn::optim::AdamConfig::new().with_amsgrad(true).init();
    assert_same(device, stock, || {
        AdamConfig::new().with_amsgrad(true).build()
    });
    let stock = burn::optim::AdamWConfig::new().init();
    assert_same(device, stock, || AdamWConfig::new().build());
    let stock = burn::optim::SgdConfig::new()
        .with_momentum(momentum())
        .init();
    assert_same(device, stock, || {
        SgdConfig::new().with_momentum(momentum()).build()
    });
}

fn a_parameter_without_gradient_in_the_last_micro_batch_is_stepped(device: &Device) {
    let initial = Squashed::init(device);
    let copy = || copy(&initial, || Squashed::init(device));
    let [x, y] = &batches(device, 2)[..] else {
        unreachable!()
    };
    let hidden = |model: &Squashed, x: &Tensor<2>| model.input.forward(x.clone()).square().sum();
    let loss = |model: &Squashed, x: &Tensor<2>| model.loss(x.clone());

    let mut stock = copy();
    let mut accumulator = GradientsAccumulator::new();
    for gradients in [loss(&stock, x).backward(), hidden(&stock, y).backward()] {
        accumulator.accumulate(&stock, GradientsParams::from_grads(gradients, &stock));
    }
    let momentum = Some(MomentumConfig::new());
    let burns = burn::optim::SgdConfig::new().with_momentum(momentum.clone());
    stock = burns.init().step(LEARNING_RATE, stock, accumulator.grads());

    let sgd = || SgdConfig::new().with_momentum(momentum.clone()).build();
    let mut fused = FusedOptimizer::accumulating_in_state_ok(copy(), sgd());
    fused.accumulate_ok(|model| loss(model, x));
    fused.step_ok(LEARNING_RATE, |model| hidden(model, y));
    assert_eq!(fused.last_step().updated, 4);
    assert_eq!(fused.last_step().without_gradient, 0);
    assert_equal_weights(&stock, &fused.model());

    // So it is when there is no last micro-batch.
    let mut fused = FusedOptimizer::accumulating_in_state_ok(copy(), sgd());
    fused.accumulate_ok(|model| loss(model, x));
    fused.accumulate_ok(|model| hidden(model, y));
    fused.step_accumulated_ok(LEARNING_RATE);
    assert_equal_weights(&stock, &fused.model());
    let error = fused.step_accumulated(LEARNING_RATE).unwrap_err();
    assert_eq!(error, FusedError::NothingAccumulated);
}

fn its_record_is_that_of_the_optimizer(device: &Device) {
    let initial = Squashed::init(device);
    let groups = groups(device);
    let adam_w = AdamWConfig::new();
    let mut fused = FusedOptimizer::accumulating_in_state_ok(initial, adam_w.build());
    train(&mut fused, &groups, LEARNING_RATE);

    let x = groups[0][0].clone();
    let model = || copy(&fused.model(), || Squashed::init(device));
    let optimizer = burn::optim::AdamWConfig::new().init();
    let mut optimizer = optimizer.load_record(fused.to_record());
    let stock = train_stock(model(), &mut optimizer, 1, LEARNING_RATE, |model, _| {
        model.loss(x.clone())
    });
    let mut again = FusedOptimizer::accumulating_in_state_ok(model(), adam_w.build());
    again.load_record_ok(fused.to_record());
    again.step_ok(LEARNING_RATE, |model| model.loss(x.clone()));
    assert_equal_weights(&stock, &again.model());

    // A group that had begun is gone with the state it began in.
    let x = &groups[0][0];
    again.accumulate_ok(|model| model.loss(x.clone()));
    again.load_record_ok(fused.to_record());
    let error = again.step_accumulated(LEARNING_RATE).unwrap_err();
    assert_eq!(error, FusedError::NothingAccumulated);
}

on_every_backend!(
    a_trained_lora_base_accumulates_in_the_state_too,
    moments_take_the_gradients_by_the_formula_of_adam_a,
    velocity_takes_the_gradients_as_their_sum,
    without_micro_batches_it_is_the_optimizer_itself,
    a_parameter_without_gradient_in_the_last_micro_batch_is_stepped,
    its_record_is_that_of_the_optimizer,
);

#[test]
fn optimizers_without_a_fitting_state_are_refused() {
    fn assert_refused(optimizer: ElementWiseOptimizer<impl AccumulateInState>, words: &str) {
        let device = Device::flex().autodiff();
        let model = Squashed::init(&device);
        let error = FusedOptimizer::accumulating_in_state(model, optimizer).unwrap_err();
        assert!(matches!(error, FusedError::NotInState { .. }));
        assert_says(&error, words);
    }
    assert_refused(SgdConfig::new().build(), "without momentum");
    let nesterov = MomentumConfig::new().with_nesterov(true);
    let sgd = SgdConfig::new().with_momentum(Some(nesterov));
    assert_refused(sgd.build(), "Nesterov");
    let decay = Some(WeightDecayConfig::new(0.1));
    assert_refused(
        AdamConfig::new().with_weight_decay(decay).build(),
        "use `AdamW`",
    );
    let cautious = AdamWConfig::new().with_cautious_weight_decay(true);
    assert_refused(cautious.build(), "whole update");
}

#[test]
fn policies_that_need_the_sum_are_refused() {
    let device = Device::flex().autodiff();
    let fused = || {
        let adam = AdamConfig::new().build();
        FusedOptimizer::accumulating_in_state_ok(Squashed::init(&device), adam)
    };
    let exact = fused().with_config(FusedConfig::exact(1.0));
    assert!(exact.unwrap_err().to_string().contains("Lagged"));
    let skipping = fused().with_config(FusedConfig::scaling(LossScalingConfig::new()));
    assert!(skipping.unwrap_err().to_string().contains("SkipParameter"));

    let scaling = LossScalingConfig::new().with_overflow(Overflow::SkipParameter);
    let mut fused =
        fused().with_config_ok(FusedConfig::lagged(1.0).with_loss_scaling(Some(scaling)));
    train(&mut fused, &groups(&device), LEARNING_RATE);
    let rate: ModuleLearningRate = LEARNING_RATE.into();
    let [x, ..] = &batches(&device, 1)[..] else {
        unreachable!()
    };
    fused.step_ok(rate, |model| model.loss(x.clone()));
    assert!(fused.last_step().gradient_norm.is_some());
}
