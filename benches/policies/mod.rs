//! Every gradient policy in a stock loop and in a fused one.

use backburn::{
    FusedConfig, FusedOptimizer, GlobalNormClippingConfig, GradientStatistics, LossScalingConfig,
    Overflow,
};
use burn::module::{Module, ModuleVisitor, Param, ParamGroup};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::prelude::*;

use crate::network::Network;

/// Micro-batches of a step with accumulation.
pub const GROUP: usize = 4;
const LEARNING_RATE: f64 = 1e-4;
const MAX_NORM: f64 = 1e-3;
const LOSS_SCALE: f64 = 65536.0;

/// Gradient policy of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Plain,
    Accumulation,
    InState,
    Exact,
    /// Exact in one pass, with the gradients in a buffer.
    ExactInBuffer,
    Lagged,
    SkipStep,
    SkipParameter,
    Statistics,
}

impl Policy {
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::Plain, "plain"),
        (Self::Accumulation, "accumulation of 4"),
        (Self::InState, "accumulation of 4, in state"),
        (Self::Exact, "clipping, exact"),
        (Self::ExactInBuffer, "clipping, exact, buffer"),
        (Self::Lagged, "clipping, lagged"),
        (Self::SkipStep, "loss scaling, skip step"),
        (Self::SkipParameter, "loss scaling, one pass"),
        (Self::Statistics, "hook with statistics"),
    ];

    /// Returns a function that makes a step of the fused optimizer, with Burn's AdamW where possible.
    pub fn fused<const D: usize, M: Network<D> + Module>(
        self,
        model: M,
        input: Tensor<D>,
    ) -> impl FnMut() {
        let mut fused = match self {
            Self::InState => {
                let optimizer = backburn::optim::AdamWConfig::new().build();
                FusedOptimizer::accumulating_in_state(model, optimizer).unwrap()
            }
            _ => FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap(),
        };
        let config = FusedConfig::new();
        let scaling = LossScalingConfig::new().with_initial_scale(LOSS_SCALE);
        let one_pass = scaling.with_overflow(Overflow::SkipParameter);
        let config = match self {
            Self::Exact => config.with_clipping(Some(GlobalNormClippingConfig::Exact(MAX_NORM))),
            Self::ExactInBuffer => {
                config.with_clipping(Some(GlobalNormClippingConfig::ExactInBuffer(MAX_NORM)))
            }
            Self::Lagged => config.with_clipping(Some(GlobalNormClippingConfig::Lagged(MAX_NORM))),
            Self::SkipStep => config.with_loss_scaling(Some(scaling)),
            Self::SkipParameter => config.with_loss_scaling(Some(one_pass)),
            Self::Plain | Self::Accumulation | Self::InState | Self::Statistics => config,
        };
        fused = fused.with_config(config).unwrap();
        if let Self::Statistics = self {
            fused = fused.with_hook(ParamGroup::all(), GradientStatistics::new());
        }
        move || {
            if let Self::Accumulation | Self::InState = self {
                for _ in 1..GROUP {
                    fused.accumulate(|model| model.loss(input.clone())).unwrap();
                }
            }
            fused
                .step_repeatable(LEARNING_RATE, |model| model.loss(input.clone()))
                .unwrap();
        }
    }

    /// Returns a function that makes a step with Burn alone, after the backward pass.
    pub fn stock<const D: usize, M: Network<D> + Module>(
        self,
        model: M,
        input: Tensor<D>,
    ) -> impl FnMut() {
        let mut model = Some(model);
        let mut optimizer = AdamWConfig::new().init();
        let mut last_norm = 0.0;
        let mut accumulator = GradientsAccumulator::new();
        move || {
            let current = model.take().expect("the step before has put it back");
            let gradients = |scale: Option<f64>| {
                let loss = current.loss(input.clone());
                let loss = scale.map_or(loss.clone(), |scale| loss.mul_scalar(scale));
                GradientsParams::from_grads(loss.backward(), &current)
            };
            let gradients = match self {
                Self::Plain => gradients(None),
                Self::Accumulation | Self::InState => {
                    for _ in 0..GROUP {
                        accumulator.accumulate(&current, gradients(None));
                    }
                    accumulator.grads()
                }
                Self::Exact | Self::ExactInBuffer | Self::Lagged => {
                    let mut gradients = gradients(None);
                    let norm = Each::measure(&current, &mut gradients);
                    let norm = match self {
                        Self::Exact | Self::ExactInBuffer => norm,
                        _ => std::mem::replace(&mut last_norm, norm),
                    };
                    if norm > MAX_NORM {
                        Each::scale(&current, &mut gradients, MAX_NORM / norm);
                    }
                    gradients
                }
                Self::SkipStep | Self::SkipParameter => {
                    let mut gradients = gradients(Some(LOSS_SCALE));
                    let norm = Each::measure(&current, &mut gradients);
                    assert!(norm.is_finite());
                    Each::scale(&current, &mut gradients, 1.0 / LOSS_SCALE);
                    gradients
                }
                Self::Statistics => {
                    let mut gradients = gradients(None);
                    Each::measure(&current, &mut gradients);
                    gradients
                }
            };
            model = Some(optimizer.step(LEARNING_RATE, current, gradients));
        }
    }
}

/// A visitor of gradients.
struct Each<'a> {
    gradients: &'a mut GradientsParams,
    squares: Option<Vec<Tensor<1>>>,
    coefficient: Option<f64>,
}

impl Each<'_> {
    /// Returns the global norm.
    fn measure<M: Module>(model: &M, gradients: &mut GradientsParams) -> f64 {
        let mut each = Each {
            gradients,
            squares: Some(Vec::new()),
            coefficient: None,
        };
        model.visit(&mut each);
        let squares = Tensor::cat(each.squares.unwrap_or_default(), 0);
        squares.sum().sqrt().into_scalar::<f64>()
    }

    fn scale<M: Module>(model: &M, gradients: &mut GradientsParams, coefficient: f64) {
        model.visit(&mut Each {
            gradients,
            squares: None,
            coefficient: Some(coefficient),
        });
    }
}

impl ModuleVisitor for Each<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(mut gradient) = self.gradients.remove::<D>(param.id) else {
            return;
        };
        if let Some(squares) = &mut self.squares {
            squares.push(gradient.clone().square().sum());
        }
        if let Some(coefficient) = self.coefficient {
            gradient = gradient.mul_scalar(coefficient);
        }
        self.gradients.register(param.id, gradient);
    }
}
