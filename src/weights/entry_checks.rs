//! Checks of a parameter before its module is attached.

use burn::tensor::{DType, Device};

use super::entry::{Entry, Role};
use crate::device;
use crate::error::FusedError;
use crate::offload::OffloadEngine;
use crate::placement::{RankContext, StorageTier};
use crate::quantized::is_shape_stub;
use crate::tap;

impl Entry {
    /// Returns an error if a parameter can't be stored or computed with where `context` places it. `checked` pairs of
    /// device and type are not checked again.
    pub(super) fn check(
        &self,
        context: &RankContext,
        checked: &mut Vec<(Device, DType)>,
    ) -> Result<(), FusedError> {
        let Self { dtype, role, .. } = self;
        if is_shape_stub(*dtype) {
            return Ok(());
        }
        let path = || self.path.to_string();
        let device = context.device().unwrap_or(&self.device);
        if *role == Role::Released && !tap::covers(device) {
            return Err(FusedError::BackendNotCovered {
                device: format!("{device:?}"),
                path: path(),
            });
        }
        for place in self.places(context, device) {
            if !checked.contains(&place) {
                device::check(&place.0, place.1)?;
                checked.push(place);
            }
        }
        if let Some(engine) = &context.engine {
            self.check_on_host(engine)?;
        }
        let compute_dtype = context.policy.compute_dtype(*dtype);
        if compute_dtype != *dtype && *role != Role::Released {
            return Err(FusedError::ComputeDtype {
                path: path(),
                dtype: format!("{dtype:?}"),
                compute_dtype: format!("{compute_dtype:?}"),
            });
        }
        match self.is_computed {
            true => Err(FusedError::NotALeaf { path: path() }),
            false => Ok(()),
        }
    }

    /// Returns the bytes that are offloaded to the host. Several ranks share the offloaded values, so only the first
    /// rank counts them.
    pub(super) fn offloaded_bytes_of(&self, context: &RankContext) -> usize {
        let is_offloaded = self.tier(&context.policy) == StorageTier::Host;
        let moves_to_host = context.engine.as_ref().is_some_and(|engine| {
            is_offloaded
                && context.membership.is_none()
                && engine.host != self.device.clone().inner()
        });
        if moves_to_host { self.bytes() } else { 0 }
    }

    /// Returns the devices and types of the parameter when it is computed with on `device`.
    fn places(
        &self,
        context: &RankContext,
        device: &Device,
    ) -> impl Iterator<Item = (Device, DType)> {
        let Self { dtype, role, .. } = *self;
        let here = device.clone().inner();
        // A frozen parameter that is not moved may have any type.
        let is_needed = role != Role::Frozen || here != self.device.clone().inner();
        let computed = is_needed.then(|| (here, context.policy.compute_dtype(dtype)));
        let stored_at = (role == Role::Released)
            .then(|| context.location(self.id, self.elements(), dtype, device))
            .filter(|location| !location.is_host)
            .map(|location| (location.device, dtype));
        // The ordinary model of a rank is on the rank's device.
        let ordinary = context
            .membership
            .as_ref()
            .filter(|_| is_needed && context.engine.is_none())
            .map(|member| (member.device().clone(), dtype));
        [computed, stored_at, ordinary].into_iter().flatten()
    }

    /// Returns the device that steps the parameter.
    pub(super) fn stepped_on(&self, context: &RankContext) -> Device {
        let device = context.device().unwrap_or(&self.device);
        let location = match self.role {
            Role::Released => context.location(self.id, self.elements(), self.dtype, device),
            _ => context.leaf_location(self.id, device),
        };
        location.device
    }

    /// Returns an error if the host does not support the type of a parameter: the whole ordinary model is on the host.
    fn check_on_host(&self, engine: &OffloadEngine) -> Result<(), FusedError> {
        let Self { path, dtype, .. } = self;
        let host = &engine.host;
        let reason = if !device::has(host, *dtype) {
            format!(
                "parameter `{path}` is {dtype:?}, which the host {host:?} does not have: use `OffloadHost::Flex`"
            )
        } else if engine.config.offloads_states() && self.is_trained() && *dtype != DType::F32 {
            format!(
                "parameter `{path}` is {dtype:?}, and offloaded optimizer states are in f32: use `Offload::Updates`"
            )
        } else {
            return Ok(());
        };
        Err(FusedError::Offload { reason })
    }
}
