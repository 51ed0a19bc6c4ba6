use backburn_base::{copy_to_device, is_cpu_backend, lift, of_data, read};
use burn::module::{Content, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper};
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::tensor::quantization::QuantStore;
use burn::tensor::{DType, Device, Tensor};

use super::weight::in_layout;

/// Applies `change` to `rows` without autodiff.
fn with_inner(rows: Tensor<2>, change: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
    match rows.gradient_checkpointing_strategy() {
        Some(strategy) => lift(change(rows.inner()), strategy),
        None => change(rows),
    }
}

/// Returns loaded `rows` in the layout `store`. On CPU backends, copies them, because Burn loads them into a buffer of twice their
/// length.
fn loaded(rows: Tensor<2>, store: Option<QuantStore>) -> Tensor<2> {
    let rows = in_layout(rows, store);
    let device = rows.device();
    match is_cpu_backend(&device) {
        true => of_data(read(rows), &device),
        false => rows,
    }
}

/// The quantized values of a weight, as rows of bytes: a frozen parameter of the adapter.
#[derive(Clone, Debug)]
pub(super) struct QuantizedValues(Param<Tensor<2>>);

impl QuantizedValues {
    pub(super) fn new(rows: Tensor<2>) -> Self {
        let store = match rows.dtype() {
            DType::QFloat(scheme) => Some(scheme.store),
            _ => None,
        };
        let rows = Param::initialized(ParamId::new(), rows);
        Self(rows.load_mapper(move |rows| with_inner(rows, |rows| loaded(rows, store))))
    }

    /// Returns the rows, without autodiff, from where they are stored.
    pub(super) fn rows(&self) -> Tensor<2> {
        Tensor::from_dispatch(self.0.val().inner().into_dispatch())
    }

    /// Returns the parameter for visitors. It has no elements, and only its record has the values: see
    /// [`with_value`](backburn_base::with_value).
    fn without_elements(&self) -> Param<Tensor<2>> {
        let values = self.0.base();
        let nothing = |device: &Device, _: bool| Tensor::zeros([0, 0], device);
        let shape = [0, 0].into();
        Param::uninitialized(self.0.id, nothing, values.device(), false, shape)
            .save_mapper(move |_nothing| values.clone())
    }
}

impl Module for QuantizedValues {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.without_elements().visit(visitor);
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let values = Module::map(self.0, mapper);
        match values.is_require_grad() {
            true => Self(values.set_require_grad(false)),
            false => Self(values),
        }
    }

    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        self.0.collect_devices(devices)
    }

    fn to_device(self, device: &Device) -> Self {
        let device = device.clone().inner();
        let copied = |rows| copy_to_device(rows, &device);
        Self(self.0.map(|rows| with_inner(rows, copied)))
    }

    /// Moves to `device` like `to_device`: Burn's own `fork` would dequantize.
    fn fork(self, device: &Device) -> Self {
        self.to_device(device)
    }

    fn train(self) -> Self {
        Self(self.0.train())
    }

    fn valid(&self) -> Self {
        Self(self.0.valid())
    }

    fn materialize(self) -> Self {
        Self(self.0.materialize())
    }
}

impl ModuleDisplayDefault for QuantizedValues {
    fn content(&self, content: Content) -> Option<Content> {
        content.optional()
    }
}

impl ModuleDisplay for QuantizedValues {}
