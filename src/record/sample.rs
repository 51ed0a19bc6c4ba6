//! A sample state, created by the optimizer, to compare a loaded state with.

use backburn_base::{AnyTensor, Parameter, host, with_dims};
use backburn_optim::call::Call;
use backburn_optim::optimizer_record::{RecordedState, compact_records, to_bytes};
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Device, Tensor};

use super::states;
use crate::shared_optimizer::step_one;

/// Steps `parameter` once, in host memory, with `optimizer`, which must have no states. Returns its state, or `None` if
/// the optimizer can't step it.
pub(super) fn sample(
    optimizer: &ModuleOptimizer,
    parameter: &Parameter,
    is_compact: bool,
) -> Option<RecordedState> {
    let Parameter { param, path, .. } = parameter;
    let (id, shape) = (param.id(), param.shape());
    let (device, dtype) = match param.is_initialized() {
        true => (param.value().device(), param.value().dtype()),
        false => (Device::default(), DType::F32),
    };
    let host = host(&device.inner());
    let ones = || -> AnyTensor {
        with_dims!(shape.num_dims(), D => Tensor::<D>::ones(shape.clone(), (&host, dtype)).into())
    };
    let mut optimizer = optimizer.clone();
    let step = || step_one(&mut optimizer, 0.0.into(), path, id, ones(), ones());
    Call::default().make(step).0.ok()?;
    let record = match is_compact {
        true => compact_records(|| optimizer.to_record()),
        false => optimizer.to_record(),
    };
    let [mut states, _] = states(to_bytes(record).ok()?).ok()?;
    states.remove(&id.val())
}
