use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;

use super::rank::Rank;
use crate::config::FusedConfig;
use crate::device::hand_over;
use crate::error::FusedError;
use crate::layout::Layout;
use crate::parameters::with_own_statistics;
use crate::pass::Session;
use crate::replica::{Group, Membership};
use crate::weights::{FusedForm, Inventory, Role};

/// The devices of the ranks.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) devices: Vec<Device>,
}

impl Setup {
    pub(super) fn new(devices: Vec<Device>) -> Result<Self, FusedError> {
        if devices.is_empty() {
            let reason = "there are no devices: name one for every rank".to_string();
            return Err(FusedError::Replicas { reason });
        }
        Ok(Self { devices })
    }

    /// The batches by rank; the last ranks may have none.
    pub(super) fn dealt<B>(
        &self,
        batches: impl IntoIterator<Item = B>,
    ) -> Result<Vec<Option<B>>, FusedError> {
        let mut dealt: Vec<_> = batches.into_iter().map(Some).collect();
        let (ranks, batches) = (self.devices.len(), dealt.len());
        if batches == 0 || batches > ranks {
            let reason = format!(
                "there are {batches} batches for {ranks} ranks: give every rank one, or the first ranks if there are fewer"
            );
            return Err(FusedError::Replicas { reason });
        }
        dealt.resize_with(ranks, || None);
        Ok(dealt)
    }

    /// The same for `model`: where its replicas compute, with its gradient checkpointing strategy. Burn refuses to
    /// compute with tensors of two.
    pub(super) fn of_model<M: Module>(mut self, model: &M) -> Self {
        let of_model = model.devices().into_iter().next();
        let of_model = of_model.unwrap_or_default().autodiff();
        for device in &mut self.devices {
            *device = device.clone().with_autodiff_context_from(&of_model);
        }
        self
    }

    /// The replicas of `model`, which share it as `config` says, and whose optimizer is that of `session`.
    pub(super) fn ranks<M: Module>(
        &self,
        model: M,
        session: &Session,
        config: &FusedConfig,
    ) -> Result<(Vec<Rank<M>>, Arc<Group>), FusedError> {
        let (dtype, offload) = (config.compute_dtype, config.offload.as_ref());
        let first = match offload {
            None => Layout::on(self.devices.first(), dtype),
            Some(_) => Layout::new(dtype, offload, &self.devices[0])?,
        };
        let inventory = Inventory::take(&model, &first)?;
        let mut parameters = inventory.sizes(Role::Released);
        // Only for the order of their sums: they are on all ranks.
        parameters.append(&mut inventory.sizes(Role::Retained));
        let group = Arc::new(Group::new(
            self.devices.clone(),
            config.sharding,
            config.ownership,
            config.max_lead,
            config.draws_random_numbers,
            parameters,
        ));
        // A home is ready when its owner has a view of it, so all have before the first pass. The first rank comes last:
        // its running statistics are those of `model`, and go where it goes.
        let mut ranks = Vec::<Rank<M>>::new();
        for rank in (0..group.ranks()).rev() {
            let replica = match rank {
                0 => model.clone(),
                _ => with_own_statistics(model.clone()),
            };
            let group = group.clone();
            let layout = Layout::new(dtype, offload, &self.devices[rank])?;
            let layout = Arc::new(layout.of_rank(Membership { group, rank }));
            let session = Arc::new(session.of_replica());
            let form = match ranks.last() {
                None => FusedForm::new(replica, &session, layout)?,
                Some(other) => FusedForm::beside(&other.form, replica, &session, layout)?,
            };
            ranks.push(Rank::new(form, session));
        }
        ranks.reverse();
        // The ranks compute on threads of their own.
        group.devices().iter().for_each(hand_over);
        Ok((ranks, group))
    }
}
