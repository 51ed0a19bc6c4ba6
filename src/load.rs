use std::collections::HashSet;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::{DType, FloatDType, Tensor};

use crate::cast::{check_devices, leaf};
use crate::parameters::running_statistics;

/// Loads `record` into `model`, with float parameters in `dtype`.
///
/// Parameters are read one after the other: in addition to the loaded ones, at most one exists. Integers, booleans, quantized values
/// and the running statistics of normalization layers keep their types, as in [`cast`](crate::cast()).
///
/// Burn's `load_record` keeps the types of the record. Burn's [`cast_to_module_dtype`](ModuleRecord::cast_to_module_dtype) needs a model
/// that is already in `dtype`, and holds each old parameter while the new one is read.
///
/// ```
/// use backburn::load_record_in;
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::tensor::{DType, Device, FloatDType};
///
/// let device = Device::flex().autodiff();
/// # let record = LinearConfig::new(64, 64).init(&device).into_record();
/// // let record = ModuleRecord::load("model.bpk")?;
/// let model = LinearConfig::new(64, 64).init(&device);
/// let model = load_record_in(model, record, FloatDType::BF16)?;
/// assert_eq!(model.weight.val().dtype(), DType::BF16);
/// # Ok::<(), burn::store::RecordError>(())
/// ```
///
/// # Errors
///
/// Returns the errors of [`Module::try_load_record`], and one if a parameter is missing, even if the record allows it, because the old values are dropped
/// first. To load a part of a model, [`cast`](crate::cast()) the model first, and load with `cast_to_module_dtype`.
///
/// # Panics
///
/// If a device of the model can't compute in `dtype`, with the message of
/// [`FusedError::FloatTypeNotSupported`](crate::FusedError::FloatTypeNotSupported).
pub fn load_record_in<M: Module>(
    model: M,
    record: ModuleRecord,
    dtype: FloatDType,
) -> Result<M, RecordError> {
    check_devices(&model, dtype).unwrap_or_else(|error| panic!("{error}"));
    let statistics = running_statistics(&model);
    let skeleton = model.map(&mut SkeletonMapper { dtype, statistics });
    let record = record.cast_to_module_dtype();
    skeleton.try_load_record(record.allow_partial(false).validate(true))
}

/// A mapper that replaces parameters by expanded views of one element, in another type.
struct SkeletonMapper {
    dtype: FloatDType,
    statistics: HashSet<ParamId>,
}

impl ModuleMapper for SkeletonMapper {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_quantized =
            || param.is_initialized() && matches!(param.base().dtype(), DType::QFloat(_));
        if self.statistics.contains(&param.id) || is_quantized() {
            return param;
        }
        let dtype = self.dtype;
        let skeleton = move |value: Tensor<D>| {
            let element = Tensor::<D>::zeros([1; D], (&value.device(), dtype.into()));
            element.expand(value.shape())
        };
        if !param.is_initialized() {
            // `init_mapper` keeps the recorded shape, which is transposed for a layer in columns.
            return param.init_mapper(skeleton);
        }
        param.map(|value| leaf(value, skeleton))
    }
}
