//! An optimizer from outside of the crate, by its public items, in a stock loop.

use backburn_optim::{
    ElementState, ElementWise, ElementWiseOptimizer, Number, Rule, Step, UpdateRule, WeightFormat,
};
use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, Optimizer};
use burn::tensor::{DType, Device, Distribution, Tensor};

const MOMENTUM: f64 = 0.9;
const LEARNING_RATE: f64 = 0.01;

/// Momentum without dampening.
#[derive(Clone, Debug)]
struct HeavyBall;

#[derive(Clone, Debug)]
struct Formula {
    learning_rate: f64,
}

impl UpdateRule<1> for Formula {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, [velocity]: [N; 1]) -> (N, [N; 1]) {
        let velocity = velocity * N::of(MOMENTUM) + gradient;
        let parameter = parameter - velocity * N::of(self.learning_rate);
        (parameter, [velocity])
    }
}

impl ElementWise for HeavyBall {
    const STATES: &'static [ElementState] = &[ElementState::signed("velocity")];

    fn rule(&self, step: Step) -> Rule {
        Rule::new(Formula {
            learning_rate: step.learning_rate,
        })
    }
}

fn values(weight: &Param<Tensor<2>>) -> Vec<f32> {
    weight.val().into_data().iter::<f32>().collect()
}

/// Adds the time of each step to the parameter.
#[derive(Clone, Debug)]
struct Clock(f64);

impl UpdateRule<0> for Clock {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, _gradient: N, []: [N; 0]) -> (N, [N; 0]) {
        (parameter + N::of(self.0), [])
    }
}

#[derive(Clone, Debug)]
struct Uncounted;

impl ElementWise for Uncounted {
    const STATES: &'static [ElementState] = &[];
    const TIME: Option<&'static str> = None;

    fn rule(&self, step: Step) -> Rule {
        Rule::new(Clock(step.time.into()))
    }
}

/// A format counts steps for its random bits.
#[test]
fn rule_without_time_has_first_time_in_every_format() {
    let device = Device::flex();
    for (dtype, format) in [
        (DType::F32, WeightFormat::Plain),
        (DType::BF16, WeightFormat::Plain),
        (DType::BF16, WeightFormat::Split24),
    ] {
        let optimizer = ElementWiseOptimizer::new(Uncounted).with_weight_format(format);
        let mut value = Tensor::<1>::zeros([5000], (&device, dtype));
        let mut state = None;
        for _ in 0..3 {
            let gradient = value.ones_like();
            (value, state) = optimizer.step(0.1, value, gradient, state);
        }
        let (least, most) = (value.clone().min(), value.max());
        let all = [least, most].map(|it| it.into_scalar::<f64>());
        assert_eq!(all, [3.0, 3.0], "{dtype:?}, {format:?}");
    }
}

#[test]
fn own_rule_in_stock_loop_equals_formula_by_hand() {
    let device = Device::flex().autodiff();
    let mut model: Linear = LinearConfig::new(67, 31).with_bias(false).init(&device);
    let mut optimizer = ModuleOptimizer::from(ElementWiseOptimizer::new(HeavyBall));
    let mut weights = values(&model.weight);
    let mut velocities = vec![0.0_f32; weights.len()];
    for _ in 0..4 {
        let x = Tensor::<2>::random([5, 67], Distribution::Default, &device);
        let loss = model.forward(x).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let gradient = gradients
            .get::<2>(model.weight.id)
            .expect("the weight is used");
        let gradient = gradient.into_data();
        let states = weights.iter_mut().zip(&mut velocities);
        for ((weight, velocity), gradient) in states.zip(gradient.iter::<f32>()) {
            *velocity = *velocity * MOMENTUM as f32 + gradient;
            *weight -= *velocity * LEARNING_RATE as f32;
        }
        model = optimizer.step(LEARNING_RATE, model, gradients);
        assert_eq!(values(&model.weight), weights);
    }
}
