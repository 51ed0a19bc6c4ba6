//! A hook that calls a closure.

use backburn::{GradientFlow, GradientHook, HookedParameter};
use burn::tensor::{Device, Tensor};

/// A complete gradient of any shape.
pub struct Finished<'a> {
    pub path: &'a str,
    /// The device that updates its parameter.
    pub device: Device,
    elements: &'a dyn Fn() -> Vec<f32>,
}

impl Finished<'_> {
    pub fn elements(&self) -> Vec<f32> {
        (self.elements)()
    }
}

/// The answer of a hook to a gradient.
pub enum Answer {
    Use,
    Scale(f32),
    Veto,
    Stop(&'static str),
}

pub fn hook(answer: impl Fn(&Finished<'_>) -> Answer + Send + Sync + 'static) -> impl GradientHook {
    Hook(answer)
}

struct Hook<F>(F);

impl<F: Fn(&Finished<'_>) -> Answer + Send + Sync + 'static> GradientHook for Hook<F> {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        assert_eq!(parameter.value.device(), gradient.device());
        let finished = Finished {
            path: parameter.path,
            device: gradient.device(),
            elements: &|| gradient.to_data().iter().collect(),
        };
        match (self.0)(&finished) {
            Answer::Use => GradientFlow::Continue(gradient),
            Answer::Scale(factor) => GradientFlow::Continue(gradient.mul_scalar(factor)),
            Answer::Veto => GradientFlow::Veto,
            Answer::Stop(reason) => GradientFlow::Stop(reason.into()),
        }
    }
}
