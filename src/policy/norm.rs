use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};

/// The sum of the squares of a gradient, in f32 for half types: in f16 it would overflow.
pub(crate) fn squares<const D: usize>(gradient: &Tensor<D>) -> Tensor<1> {
    let gradient = match gradient.dtype() {
        DType::F16 | DType::BF16 => gradient.clone().cast(FloatDType::F32),
        _ => gradient.clone(),
    };
    gradient.square().sum()
}

/// The [`squares`] of `gradients`, added to those `accumulated`, of the parameters of `module`.
pub(crate) fn squares_of<M: Module>(
    module: &M,
    gradients: &GradientsParams,
    accumulated: &GradientsParams,
) -> Vec<Tensor<1>> {
    struct Squares<'a> {
        gradients: &'a GradientsParams,
        accumulated: &'a GradientsParams,
        found: Vec<Tensor<1>>,
    }

    impl ModuleVisitor for Squares<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.gradients.get::<D>(param.id);
            let gradient = match (self.accumulated.get::<D>(param.id), gradient) {
                (Some(sum), Some(gradient)) => Some(sum.add(gradient)),
                (sum, gradient) => sum.or(gradient),
            };
            self.found.extend(gradient.as_ref().map(squares));
        }
    }

    let mut squares = Squares {
        gradients,
        accumulated,
        found: Vec::new(),
    };
    module.visit(&mut squares);
    squares.found
}

/// The root of the sum, read back from the device at once and added up in f64.
pub(crate) fn norm(squares: Vec<Tensor<1>>) -> f64 {
    if squares.is_empty() {
        return 0.0;
    }
    let dtype = squares[0].dtype();
    let same = squares.iter().all(|square| square.dtype() == dtype);
    let squares = squares.into_iter().map(|square| match same {
        true => square,
        false => square.cast(FloatDType::F32),
    });
    let squares = Tensor::cat(squares.collect(), 0).into_data();
    squares.iter::<f64>().sum::<f64>().sqrt()
}

/// The gradients of parameters of `module`, multiplied by `coefficient`.
pub(crate) fn scaled<M: Module>(
    module: &M,
    gradients: GradientsParams,
    coefficient: f64,
) -> GradientsParams {
    struct Scale {
        gradients: GradientsParams,
        coefficient: f64,
    }

    impl ModuleVisitor for Scale {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                let gradient = gradient.mul_scalar(self.coefficient);
                self.gradients.register(param.id, gradient);
            }
        }
    }

    let mut scale = Scale {
        gradients,
        coefficient,
    };
    module.visit(&mut scale);
    scale.gradients
}
