//! Offloaded frozen parameters, which are fetched when they are read, or for a run of a checkpointed block.

use std::collections::HashMap;

use backburn_base::{AnyTensor, copy_to_device, lift, list};
use burn::module::{Module, ParamId};
use burn::tensor::Tensor;

use super::inventory::Inventory;
use crate::offload::OffloadEngine;
use crate::parameters::{ValuesInOrder, map_params, running_statistics};
use crate::placement::{RankContext, StorageTier};
use crate::quantized::is_shape_stub;

/// Returns the offloaded frozen parameters of `module`, with `true` for those that have an adapter: Burn allows one
/// reparameterization per parameter. Running statistics are never offloaded.
pub(super) fn offloaded<M: Module>(
    module: &M,
    inventory: &Inventory,
    context: &RankContext,
) -> HashMap<ParamId, bool> {
    if context.engine.is_none() {
        return HashMap::new();
    }
    let statistics = running_statistics(module);
    let is_offloaded = |id| {
        let entry = inventory.get(id).filter(|entry| !entry.is_trained());
        entry.is_some_and(|entry| {
            // Its quantized values are offloaded instead.
            !is_shape_stub(entry.dtype) && entry.tier(&context.policy) == StorageTier::Host
        }) && !statistics.contains(&id)
    };
    let mut offloaded = HashMap::new();
    for parameter in list(module) {
        if is_offloaded(parameter.param.id()) {
            let has_adapter = offloaded.entry(parameter.param.id()).or_insert(false);
            *has_adapter |= parameter.reparameterization.is_some();
        }
    }
    offloaded
}

/// Returns `module` with these parameters on the host.
pub(super) fn on_host<M: Module>(
    module: M,
    frozen: &HashMap<ParamId, bool>,
    context: &RankContext,
) -> M {
    let Some(engine) = &context.engine else {
        return module;
    };
    // A module may hold a parameter several times, or others with its id.
    let mut copies = HashMap::<ParamId, Vec<AnyTensor>>::new();
    map_params(
        module,
        |param| frozen.contains_key(&param.id()),
        |id, value| {
            let copy = constant(value, |value| copy_to_device(value, &engine.host));
            let copies = copies.entry(id).or_default();
            let mut equal = copies.iter().filter(|it| it.to_data() == copy.to_data());
            if let Some(first) = equal.next() {
                return first.clone();
            }
            copies.push(copy.clone());
            copy
        },
    )
}

/// Returns `module` with these parameters of another replica, which are on the host once for all replicas.
pub(super) fn shared<M: Module>(module: M, frozen: &HashMap<ParamId, bool>, other: &M) -> M {
    let values = ValuesInOrder::of(other, |id| frozen.contains_key(&id));
    values.put_into(module, |_own, value| value)
}

/// Returns `module` with its offloaded frozen parameters on the device, for one run of a block.
pub(crate) fn with_frozen<M: Module>(module: M, engine: Option<&OffloadEngine>) -> M {
    let Some(engine) = engine else {
        return module;
    };
    let is_offloaded =
        |value: AnyTensor| !value.is_tracked() && value.device().inner() == engine.host;
    map_params(
        module,
        |param| is_offloaded(param.value()),
        |_, value| {
            let device = engine.device.clone().inner();
            constant(value, |value| copy_to_device(value, &device))
        },
    )
}

/// Applies `change` to `value`, which is not tracked, without autodiff.
fn constant(value: AnyTensor, change: impl FnOnce(Tensor<1>) -> Tensor<1>) -> AnyTensor {
    let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
    lift(change(value.0.inner()), strategy).into()
}
