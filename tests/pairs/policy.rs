//! Gradient policies of a loop by hand: scaling, clipping, hooks.

use crate::config::MAX_NORM;
use crate::options::{Clipping, Options};
use crate::rows::{Gradients, Known};

use crate::common::*;

pub struct Policy {
    options: Options,
    clipping: Clipping,
    /// The loss scale, and the number of steps without overflow since it changed.
    scale: Option<(f64, usize)>,
    /// The last reported norm.
    norm: Option<f64>,
    /// The largest difference between the norms of two backends.
    pub tolerance: f64,
}

impl Policy {
    pub fn new(options: Options) -> Self {
        Self {
            clipping: options.clipping,
            scale: options.scaling().map(|config| (config.initial_scale, 0)),
            norm: None,
            tolerance: 1e-5,
            options,
        }
    }

    pub fn scale(&self) -> f64 {
        self.scale.map_or(1.0, |(scale, _)| scale)
    }

    /// The factor of the gradients, for the norm `told` that the fused pass has reported; `None` if the step is skipped.
    pub fn factor(&mut self, gradients: &Gradients, told: Option<f64>) -> Option<f64> {
        let squares = gradients.values().map(|gradient| {
            let wide = gradient.clone().cast(FloatDType::F64);
            wide.square().sum().into_scalar::<f64>()
        });
        let by_hand = squares.sum::<f64>().sqrt() / self.scale();
        let norm = told.unwrap_or(by_hand);
        let is_near = (norm - by_hand).abs() <= self.tolerance * by_hand;
        let none_is_finite = !norm.is_finite() && !by_hand.is_finite();
        assert!(
            is_near || none_is_finite,
            "a norm of {norm} is reported, that by hand is {by_hand}"
        );
        let goes_by = match self.clipping {
            Clipping::None => None,
            Clipping::Exact | Clipping::ExactInBuffer => Some(norm),
            Clipping::Lagged => self.norm,
        };
        self.norm = told.filter(|norm| norm.is_finite()).or(self.norm);
        if self.overflow() == Some(Overflow::SkipStep) && !norm.is_finite() {
            return None;
        }
        let clips = goes_by.filter(|norm| norm.is_finite() && *norm > MAX_NORM);
        Some(clips.map_or(1.0, |norm| MAX_NORM / norm) / self.scale())
    }

    /// Multiplies gradients, and applies the hooks.
    pub fn change(&self, gradients: &mut Gradients, known: &[Known], factor: f64) {
        let skips = self.overflow() == Some(Overflow::SkipParameter);
        gradients.retain(|id, gradient| {
            let path = &known.iter().find(|known| known.id == *id).unwrap().path;
            if factor != 1.0 || self.scale.is_some() {
                *gradient = multiplied(gradient.clone(), factor);
            }
            if skips && !gradient.clone().is_finite().all().into_scalar::<bool>() {
                return false;
            }
            if self.options.halves(path) {
                *gradient = gradient.clone().mul_scalar(0.5);
            }
            !self.options.vetoes(path)
        });
    }

    /// Adapts the policies after an update.
    pub fn adapt(&mut self, overflowed: bool) {
        let config = self.options.scaling();
        let interval = config.and_then(|config| config.growth_interval);
        if let (Some((scale, good)), Some(interval)) = (&mut self.scale, interval) {
            *good += 1;
            if overflowed {
                (*scale, *good) = (*scale / 2.0, 0);
            } else if *good >= interval {
                (*scale, *good) = (*scale * 2.0, 0);
            }
        }
    }

    /// Returns `true` if gradients are buffered until their norm is known: a step that is skipped or fails then keeps its running statistics.
    pub fn is_in_buffer(&self) -> bool {
        self.clipping == Clipping::ExactInBuffer
    }

    fn overflow(&self) -> Option<Overflow> {
        Some(self.options.scaling()?.overflow)
    }
}

pub fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn multiplied(gradient: Tensor<1>, factor: f64) -> Tensor<1> {
    let dtype = gradient.dtype();
    if is_half(dtype) {
        let wide = gradient.cast(FloatDType::F32).mul_scalar(factor);
        return wide.cast(FloatDType::from(dtype));
    }
    gradient.mul_scalar(factor)
}
