use burn::module::{Content, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper};
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Tensor};

use crate::tap::lift;

/// The quantized values of a weight, as rows of bytes: a frozen parameter of the adapter.
#[derive(Clone, Debug)]
pub(super) struct QuantizedValues(Param<Tensor<2>>);

impl QuantizedValues {
    pub(super) fn new(rows: Tensor<2>) -> Self {
        Self(Param::initialized(ParamId::new(), rows))
    }

    /// Returns the rows, without autodiff, from where they are stored.
    pub(super) fn rows(&self) -> Tensor<2> {
        Tensor::from_dispatch(self.0.val().inner().into_dispatch())
    }

    /// Returns the parameter as visitors see it: see [`with_value`](backburn_base::with_value).
    fn shown(&self) -> Param<Tensor<2>> {
        let values = self.0.base();
        let nothing = |device: &Device, _: bool| Tensor::zeros([0, 0], device);
        let shape = [0, 0].into();
        Param::uninitialized(self.0.id, nothing, values.device(), false, shape)
            .save_mapper(move |_nothing| values.clone())
    }
}

impl Module for QuantizedValues {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.shown().visit(visitor);
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
        Self(self.0.to_device(device))
    }

    /// Burn's own `fork` dequantizes quantized values.
    fn fork(self, device: &Device) -> Self {
        let strategy = self.0.gradient_checkpointing_strategy();
        let inner = device.clone().inner();
        Self(self.0.map(|values| {
            let values = values.inner().to_device(&inner);
            match strategy {
                Some(strategy) => lift(values, strategy),
                None => values,
            }
        }))
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
