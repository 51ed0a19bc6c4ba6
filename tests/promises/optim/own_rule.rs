//! An optimizer of a user: a formula and its states, in forty lines. It updates in one pass on every backend, and
//! resumes from its record. (`formats` tests its states and weights in formats.)

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use backburn::optim::{
    self as ours, AccumulateInState, ElementState, ElementWise, ElementWiseOptimizer, Number, Rule,
    Step, UpdateRule,
};
use burn::optim as stock;

use crate::common::mlp::Mlp;
use crate::common::*;
use crate::optim::assert_equal;

const RATE: f64 = 0.01;

/// RMSProp as in Burn ([Hinton, 2012](https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf)).
#[derive(Clone, Debug)]
pub struct RmsProp {
    pub alpha: f32,
    pub epsilon: f32,
}

#[derive(Clone, Debug)]
struct RmsPropRule {
    alpha: f64,
    rest: f64,
    epsilon: f64,
    learning_rate: f64,
}

impl UpdateRule<1> for RmsPropRule {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, [square]: [N; 1]) -> (N, [N; 1]) {
        let square = square * N::of(self.alpha) + gradient * gradient * N::of(self.rest);
        let delta = gradient / (square.sqrt() + N::of(self.epsilon));
        (parameter - delta * N::of(self.learning_rate), [square])
    }
}

impl ElementWise for RmsProp {
    const STATES: &'static [ElementState] = &[ElementState::positive("square_avg.square_avg")];

    fn rule(&self, step: Step) -> Rule {
        Rule::new(RmsPropRule {
            alpha: self.alpha.into(),
            rest: (1.0 - self.alpha).into(),
            epsilon: self.epsilon.into(),
            learning_rate: step.learning_rate,
        })
    }
}

/// Momentum, whose state can take the gradients of micro-batches.
#[derive(Clone, Debug)]
struct HeavyBall;

#[derive(Clone, Debug)]
struct HeavyBallRule([f64; 2]);

impl UpdateRule<1> for HeavyBallRule {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, [velocity]: [N; 1]) -> (N, [N; 1]) {
        let [momentum, learning_rate] = self.0.map(N::of);
        let velocity = gradient + velocity * momentum;
        (parameter - velocity * learning_rate, [velocity])
    }
}

impl ElementWise for HeavyBall {
    const STATES: &'static [ElementState] = &[ElementState::signed("velocity")];

    fn rule(&self, step: Step) -> Rule {
        let momentum = step.decay(f64::from(0.9_f32));
        Rule::new(HeavyBallRule([momentum, step.learning_rate]))
    }
}

impl AccumulateInState for HeavyBall {}

pub fn rms_prop() -> ElementWiseOptimizer<RmsProp> {
    ElementWiseOptimizer::new(RmsProp {
        alpha: 0.99,
        epsilon: 1e-5,
    })
}

fn own_rule_steps_match_stock(device: &Device) {
    let device = device.clone().inner();
    let random = |scale| Tensor::<2>::random([170, 130], Distribution::Normal(0.0, scale), &device);
    let (parameter, gradients) = (random(1.0), [1e-3, 1.0, 30.0].map(random));
    let burns = stock::RmsPropConfig::new().with_momentum(0.0).build();
    assert_equal("RMSProp", burns, rms_prop(), &parameter, &gradients);
}

fn own_rule_fused_matches_stock_and_resumes(device: &Device) {
    let initial = Mlp::init(device);
    let init = || Mlp::init(device);
    let x = Tensor::<2>::random([4, 3], Distribution::Default, device);
    let loss = |model: &Mlp, _| model.loss(x.clone());
    let mut own = ModuleOptimizer::from(rms_prop());
    let mut first = FusedOptimizer::new(copy(&initial, init), own.clone()).unwrap();
    train_fused(&mut first, 2, RATE, loss);
    let mut second = resumed(&first, own.clone(), init);
    train_fused(&mut second, 2, RATE, loss);
    let stock = train_stock(copy(&initial, init), &mut own, 4, RATE, loss);
    assert_equal_weights(&stock, &second.model());
    assert_changed(&initial, &second.model(), |_| true);
}

fn own_rule_accumulates_in_state_as_sgd(device: &Device) {
    let momentum = MomentumConfig::new().with_dampening(0.0);
    let sgd = ours::SgdConfig::new().with_momentum(Some(momentum)).build();
    let initial = Mlp::init(device);
    let copy = || copy(&initial, || Mlp::init(device));
    let mut sgd = FusedOptimizer::accumulating_in_state(copy(), sgd).unwrap();
    let own = ElementWiseOptimizer::new(HeavyBall);
    let mut own = FusedOptimizer::accumulating_in_state(copy(), own).unwrap();
    for pair in randoms(4, [4, 3], device).chunks(2) {
        for fused in [&mut sgd, &mut own] {
            step_group(fused, RATE, pair, |model, x| model.loss(x.clone()));
        }
    }
    assert_equal_weights(&sgd.model(), &own.model());
    assert_changed(&initial, &own.model(), |_| true);
}

/// A formula that panics when its table ends.
#[derive(Clone, Debug)]
struct Table([f64; 2]);

#[derive(Clone, Debug)]
struct TableRule(Table, usize, f64);

impl UpdateRule<1> for TableRule {
    fn update<N: Number>(&self, parameter: N, gradient: N, [velocity]: [N; 1]) -> (N, [N; 1]) {
        let Self(Table(decays), step, learning_rate) = self;
        let velocity = velocity * N::of(decays[*step]) + gradient;
        (parameter - velocity * N::of(*learning_rate), [velocity])
    }
}

impl ElementWise for Table {
    const STATES: &'static [ElementState] = &[ElementState::signed("velocity")];

    fn rule(&self, step: Step) -> Rule {
        let index = step.time as usize - 1;
        Rule::new(TableRule(self.clone(), index, step.learning_rate))
    }
}

fn own_rule_panic_keeps_value(device: &Device) {
    let x = Tensor::<2>::ones([4, 3], device);
    for format in [StateFormat::Full, StateFormat::Bits8] {
        let optimizer = ElementWiseOptimizer::new(Table([0.5, 0.9])).with_state_format(format);
        let mut fused = FusedOptimizer::new(Mlp::init(device), optimizer.into()).unwrap();
        let mut step = || fused.step(RATE, |model| model.loss(x.clone())).map(drop);
        assert_eq!([step(), step()], [Ok(()), Ok(())]);
        let before = fused.model();
        let message = panic_of(|| fused.step(RATE, |model| model.loss(x.clone())).unwrap());
        assert_says(&message, "which keeps its value");
        assert_equal_weights(&before, &fused.model());
    }
}

/// A formula that panics by a state outside of it, after it has run `left` times.
#[derive(Clone, Debug)]
struct Fragile(Arc<AtomicUsize>);

impl UpdateRule<0> for Fragile {
    fn update<N: Number>(&self, parameter: N, gradient: N, []: [N; 0]) -> (N, [N; 0]) {
        let left = self.0.fetch_sub(1, Ordering::Relaxed);
        assert!(left > 0, "no further");
        (parameter - gradient * N::of(RATE), [])
    }
}

impl ElementWise for Fragile {
    const STATES: &'static [ElementState] = &[];

    fn rule(&self, _step: Step) -> Rule {
        Rule::new(self.clone())
    }
}

/// The message of the panic names what became of the value.
fn own_rule_panic_by_outside_state_names_outcome(device: &Device) {
    let init = || -> Linear { LinearConfig::new(3, 8).with_bias(false).init(device) };
    let x = Tensor::<2>::ones([4, 3], device);
    for (left, holds_model) in product([0, 1, 5], [false, true]) {
        let runs = Arc::new(AtomicUsize::new(usize::MAX / 2));
        let optimizer = ElementWiseOptimizer::new(Fragile(runs.clone()));
        let mut fused = FusedOptimizer::new(init(), optimizer.into()).unwrap();
        let mut step = |runs_left| {
            runs.store(runs_left, Ordering::Relaxed);
            fused
                .step(RATE, |model| model.forward(x.clone()).powi_scalar(2).mean())
                .unwrap();
            fused.model()
        };
        let held = step(usize::MAX / 2);
        let before = copy(&held, init);
        let _held = holds_model.then_some(held);
        // Other backends run the formula once, to trace it.
        let is_processor = device.clone().inner() == Device::flex();
        if left > 0 && !is_processor {
            step(left);
            continue;
        }
        let message = panic_of(|| step(left));
        assert_says(&message, "no further");
        // In place, the formula has changed a part of the elements.
        if left > 0 && !holds_model {
            assert_says(&message, "whose value is lost");
            assert_says(&panic_of(|| fused.model()), "is lost");
        } else {
            assert_says(&message, "which keeps its value");
            assert_equal_weights(&before, &fused.model());
            runs.store(usize::MAX / 2, Ordering::Relaxed);
            fused
                .step(RATE, |model| model.forward(x.clone()).mean())
                .unwrap();
        }
    }
}

on_every_backend!(
    own_rule_panic_keeps_value,
    own_rule_panic_by_outside_state_names_outcome,
    own_rule_steps_match_stock,
    own_rule_fused_matches_stock_and_resumes,
    own_rule_accumulates_in_state_as_sgd,
);
