use std::any::Any;
use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{FloatDType, Tensor};

use crate::error::FusedError;
use crate::tap::lift;

/// `model` with its float parameters in another type, one after the other: there is never more than one of them in
/// both. Integers, booleans and the running statistics of normalization layers are left alone.
///
/// Burn's `BatchNorm` can't compute in another type than that of its statistics: cast the layers beside it
/// (`model.layer = cast(model.layer, ..)`), and the activations on the way.
///
/// A model that has just been made is created in that type: its parameters are drawn when they are first looked at.
///
/// ```
/// use backburn::cast;
/// use burn::nn::LinearConfig;
/// use burn::tensor::{DType, Device, FloatDType};
///
/// let device = Device::flex().autodiff();
/// let model = cast(LinearConfig::new(64, 64).init(&device), FloatDType::BF16);
/// assert_eq!(model.weight.val().dtype(), DType::BF16);
/// ```
///
/// # Panics
///
/// With the message of the error that [`try_cast`] returns.
pub fn cast<M: Module>(model: M, dtype: FloatDType) -> M {
    try_cast(model, dtype).unwrap_or_else(|error| panic!("{error}"))
}

/// The fallible [`cast`].
///
/// # Errors
///
/// [`FusedError::FloatTypeNotSupported`] if a device of the model can't compute in `dtype`.
pub fn try_cast<M: Module>(model: M, dtype: FloatDType) -> Result<M, FusedError> {
    check_devices(&model, dtype)?;
    let statistics = running_statistics(&model);
    Ok(model.map(&mut Cast { dtype, statistics }))
}

/// Refuses a type in which a device of `model` can't compute.
pub(crate) fn check_devices<M: Module>(model: &M, dtype: FloatDType) -> Result<(), FusedError> {
    let mut devices = model.devices().into_iter();
    match devices.find(|device| !device.supports_dtype(dtype)) {
        None => Ok(()),
        Some(device) => Err(FusedError::FloatTypeNotSupported {
            dtype: format!("{dtype:?}"),
            device: format!("{device:?}"),
        }),
    }
}

struct Cast {
    dtype: FloatDType,
    statistics: HashSet<ParamId>,
}

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.statistics.contains(&param.id) {
            return param;
        }
        let (id, value, mapper) = param.consume();
        Param::from_mapped_value(id, leaf_in(value, self.dtype), mapper)
    }
}

/// `value` in another type, and a leaf if it was one.
pub(crate) fn leaf_in<const D: usize>(value: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    match value.dtype() == dtype.into() {
        true => value,
        false => leaf(value, |value| value.cast(dtype)),
    }
}

/// What `make` makes of `value`, outside of autodiff, and a leaf if that was one.
pub(crate) fn leaf<const D: usize>(
    value: Tensor<D>,
    make: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    if !value.is_autodiff() {
        return make(value);
    }
    let requires_grad = value.is_require_grad();
    let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
    lift(make(value.inner()), strategy).set_require_grad(requires_grad)
}

/// The running statistics among the parameters of `model`: clones share them, so what is put into those of a clone
/// shows in the model.
pub(crate) fn running_statistics<M: Module>(model: &M) -> HashSet<ParamId> {
    let mut resting = Resting::default();
    model.visit(&mut resting);
    if resting.0.is_empty() {
        return HashSet::new();
    }
    let ids: HashSet<ParamId> = resting.0.keys().copied().collect();
    let mut emptied = Emptied {
        among: &ids,
        found: HashSet::new(),
    };
    {
        let _put_back = PutBack {
            model,
            values: resting.0,
        };
        drop(model.clone().map(&mut Empty(&ids)));
        model.visit(&mut emptied);
    }
    emptied.found
}

/// Puts the values back into the statistics that have none, when dropped.
struct PutBack<'a, M: Module> {
    model: &'a M,
    values: HashMap<ParamId, Box<dyn Any>>,
}

impl<M: Module> Drop for PutBack<'_, M> {
    fn drop(&mut self) {
        let values = std::mem::take(&mut self.values);
        drop(self.model.clone().map(&mut Fill(values)));
    }
}

/// The values that are there and not in training.
#[derive(Default)]
struct Resting(HashMap<ParamId, Box<dyn Any>>);

impl ModuleVisitor for Resting {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_initialized() {
            return;
        }
        let value = param.base();
        if !value.is_require_grad() && value.shape().num_elements() > 0 {
            self.0.insert(param.id, Box::new(value));
        }
    }
}

/// Leaves no element of these.
struct Empty<'a>(&'a HashSet<ParamId>);

impl ModuleMapper for Empty<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.0.contains(&param.id) {
            return param;
        }
        let (id, value, mapper) = param.consume();
        let nothing = Tensor::zeros([0; D], (&value.device(), value.dtype()));
        Param::from_mapped_value(id, nothing, mapper)
    }
}

/// Those without an element.
struct Emptied<'a> {
    among: &'a HashSet<ParamId>,
    found: HashSet<ParamId>,
}

impl ModuleVisitor for Emptied<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.among.contains(&param.id) && param.lazy_shape().num_elements() == 0 {
            self.found.insert(param.id);
        }
    }
}

/// Fills what has no element.
struct Fill(HashMap<ParamId, Box<dyn Any>>);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_initialized() || param.lazy_shape().num_elements() > 0 {
            return param;
        }
        match self.0.remove(&param.id).map(|value| value.downcast()) {
            Some(Ok(value)) => {
                let (id, _nothing, mapper) = param.consume();
                Param::from_mapped_value(id, *value, mapper)
            }
            _ => param,
        }
    }
}
