//! Transfers of tensors between devices, float types, and autodiff.

use burn::module::Module;
use burn::tensor::kind::Basic;
use burn::tensor::{
    DType, Device, FloatDType, GradientCheckpointingStrategy, Int, IntDType, Tensor,
};

use crate::caught::catch_message;
use crate::{copy_to_device, host, is_remote, read_with_timeout};

/// Moves `tensor`, without autodiff, to `device` and casts it to `dtype`. Returns the error if a device fails. All weights
/// and gradients move between storage and computation by this function.
pub fn transferred<const D: usize>(
    tensor: Tensor<D>,
    device: &Device,
    dtype: DType,
) -> Result<Tensor<D>, String> {
    let (from, of) = (tensor.device(), tensor.dtype());
    if from == *device && of == dtype {
        return Ok(tensor);
    }
    catch_message(|| {
        // Transfer in the smaller of both types, if both sides support it.
        let cast_first = of != dtype
            && from != *device
            && match dtype.size() < of.size() {
                true => from.supports_dtype(dtype),
                false => !device.supports_dtype(of),
            };
        match cast_first {
            true => copy_to_device(in_type(tensor, dtype), device),
            false => in_type(copy_to_device(tensor, device), dtype),
        }
    })
}

/// Casts `tensor` to this float type.
pub fn in_type<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    match tensor.dtype() == dtype {
        true => tensor,
        false => tensor.cast(FloatDType::from(dtype)),
    }
}

/// Casts the indices of classes to a signed type that represents all of them: I64, or I32 on a device without it.
pub fn signed<const D: usize>(classes: Tensor<D, Int>) -> Tensor<D, Int> {
    match classes.dtype() {
        DType::I32 | DType::I64 => classes,
        _ if classes.device().supports_dtype(DType::I64) => classes.cast(IntDType::I64),
        _ => classes.cast(IntDType::I32),
    }
}

/// Associates `value` with autodiff under the given checkpointing strategy, untracked.
pub fn lift<const D: usize>(
    value: Tensor<D>,
    strategy: GradientCheckpointingStrategy,
) -> Tensor<D> {
    // `from_inner` alone uses the default strategy, and Burn refuses to mix strategies.
    Tensor::from_inner(value).with_gradient_checkpointing_strategy(strategy)
}

/// Returns `true` if Burn would transfer a tensor directly between two servers, or between two devices of a server.
///
/// A server waits forever if the other is gone or the tensor becomes ready during the request (`ExternalCommService`, Burn
/// 0.22.1), so these go through this process. A device does not show its server: two of one server count as on two.
fn between_servers(from: &Device, to: &Device) -> bool {
    is_remote(from) && is_remote(to) && from.clone().inner() != to.clone().inner()
}

/// Moves `tensor` to `device` as [`Tensor::to_device`] does, but transfers between servers go through this process. On the
/// same device it returns the same tensor.
pub fn to_device<const D: usize, K: Basic + 'static>(
    tensor: Tensor<D, K>,
    device: &Device,
) -> Tensor<D, K> {
    let from = tensor.device();
    if from == *device {
        return tensor;
    }
    let between = match between_servers(&from, device) {
        true => host(device),
        false => device.clone(),
    };
    let read = match is_remote(&from) && !from.is_autodiff() {
        true => read_with_timeout(&from, move || tensor.to_device(&between)),
        // For a tracked tensor, another thread would wait for the graph.
        false => tensor.to_device(&between),
    };
    match read.device() == *device {
        true => read,
        false => read.to_device(device),
    }
}

/// Moves `module` to `device` as [`Module::fork`] does, but tensors on another server go through this process.
pub fn forked<M: Module>(module: M, device: &Device) -> M {
    let devices = module.devices();
    match devices.iter().any(|from| between_servers(from, device)) {
        // The module as a whole, since Burn's mappers don't visit constants.
        true => module.fork(&host(device)).fork(device),
        false => module.fork(device),
    }
}
