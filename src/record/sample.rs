//! Sample states, created by the optimizer, to compare loaded states with.

use std::cell::OnceCell;

use backburn_base::{AnyTensor, Parameter, host, with_dims};
use backburn_optim::call::Call;
use backburn_optim::optimizer_record::{RecordedState, compact_records, to_bytes};
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Device, Shape, Tensor};

use super::states;
use crate::shared_optimizer::step_one;

/// A state of one parameter after a step of its optimizer, created lazily in host memory.
pub(super) struct Sample<'a> {
    optimizer: &'a ModuleOptimizer,
    parameter: &'a Parameter,
    is_compact: bool,
    made: OnceCell<Option<RecordedState>>,
}

impl<'a> Sample<'a> {
    /// Creates the sample of `parameter`. `optimizer` must have no states.
    pub(super) fn new(
        optimizer: &'a ModuleOptimizer,
        parameter: &'a Parameter,
        is_compact: bool,
    ) -> Self {
        Self {
            optimizer,
            parameter,
            is_compact,
            made: OnceCell::new(),
        }
    }

    /// Returns `true` if the sample has a tensor of this name and shape.
    pub(super) fn has_tensor(&self, name: &str, shape: &Shape) -> bool {
        let is_it = |tensor: &burn_pack::Tensor| tensor.name == name && tensor.shape == *shape;
        self.made()
            .is_some_and(|made| made.tensors.iter().any(is_it))
    }

    /// Returns `true` if the sample has a scalar of this name and value.
    pub(super) fn has_scalar(&self, name: &str, value: usize) -> bool {
        let scalar = self.made().and_then(|made| made.scalars.get(name));
        scalar.is_some_and(|scalar| usize::try_from(*scalar) == Ok(value))
    }

    fn made(&self) -> Option<&RecordedState> {
        self.made.get_or_init(|| self.make()).as_ref()
    }

    /// Steps the parameter once and returns its state; `None` if the optimizer can't step it.
    fn make(&self) -> Option<RecordedState> {
        let Parameter { param, path, .. } = self.parameter;
        let (id, shape) = (param.id(), param.shape());
        let (device, dtype) = match param.is_initialized() {
            true => (param.value().device(), param.value().dtype()),
            false => (Device::default(), DType::F32),
        };
        let host = host(&device.inner());
        let ones = || -> AnyTensor {
            with_dims!(shape.num_dims(), D => Tensor::<D>::ones(shape.clone(), (&host, dtype)).into())
        };
        let mut optimizer = self.optimizer.clone();
        let step = || step_one(&mut optimizer, 0.0.into(), path, id, ones(), ones());
        Call::default().make(step).0.ok()?;
        let record = match self.is_compact {
            true => compact_records(|| optimizer.to_record()),
            false => optimizer.to_record(),
        };
        let [mut states, _] = states(to_bytes(record).ok()?).ok()?;
        states.remove(&id.val())
    }
}
