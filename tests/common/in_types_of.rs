//! Casts by hand: of gradients in mixed precision, and of a record that is loaded.

use backburn::cast;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::store::{ModuleRecord, RecordError};
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

/// Loads `record` into `model`, cast to `dtype`.
pub fn load_record_in<M: Module>(
    model: M,
    record: ModuleRecord,
    dtype: FloatDType,
) -> Result<M, RecordError> {
    let model = cast(model, dtype).unwrap();
    model.try_load_record(record.cast_to_module_dtype())
}
