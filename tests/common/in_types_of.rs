//! The cast of gradients in mixed precision by hand.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

/// `gradients` in the types of the parameters of `model`, as mixed precision by hand casts them back.
pub fn in_types_of<M: Module>(model: &M, mut gradients: GradientsParams) -> GradientsParams {
    struct InTypes<'a>(&'a mut GradientsParams, GradientsParams);

    impl ModuleVisitor for InTypes<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.remove::<D>(param.id) {
                let dtype = FloatDType::from(param.base().dtype());
                self.1.register(param.id, gradient.cast(dtype));
            }
        }
    }

    let mut cast = InTypes(&mut gradients, GradientsParams::new());
    model.visit(&mut cast);
    cast.1
}
