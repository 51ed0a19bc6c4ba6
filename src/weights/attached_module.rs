use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::Device;

use super::attach::{Attach, AttachedParts};
use super::entry::Role;
use super::export::{ExportLocation, Value};
use super::fetch_on_read::FetchOnRead;
use super::frozen;
use super::inventory::Inventory;
use super::local_params::LocalParams;
use super::prefetcher::Prefetcher;
use super::saved_in_full::SavedInFull;
use super::transfer::{force_reads, move_except};
use crate::error::FusedError;
use crate::offload::check_offload_fits;
use crate::parameters::{map_params, take_values, with_own_statistics};
use crate::pass::{BlockOrder, BlockPrefetch, Session};
use crate::placement::RankContext;

/// A module in fused form: its trainable values are at their homes.
pub(crate) struct AttachedModule<M> {
    /// Reads of its parameters go to the views.
    pub(crate) module: M,
    /// The ordinary module, with placeholders for the trainable values.
    pub(crate) skeleton: M,
    pub(crate) inventory: Inventory,
    pub(crate) session: Arc<Session>,
    pub(crate) local_params: Arc<LocalParams>,
    pub(crate) context: Arc<RankContext>,
    /// Whether copies come and go with the runs of blocks.
    pub(crate) fetches_blocks: bool,
    /// The frozen parameters that wait on the host, and whether each carries an adapter.
    frozen: HashMap<ParamId, bool>,
    /// Of the last pass with blocks.
    block_order: Option<BlockOrder>,
}

/// `module` without the values of the parameters that are ordinary leaves.
fn without_leaves<M: Module>(module: M, local_params: &LocalParams) -> M {
    match &local_params.leaves[..] {
        [] => module,
        leaves => take_values(module, |id| leaves.contains(&id), |device| device).0,
    }
}

impl<M: Module> AttachedModule<M> {
    /// Brings `module` into fused form, or says why it can't be. A replica shares its homes with the form of another rank, `beside` it.
    pub(crate) fn new(
        module: M,
        session: &Arc<Session>,
        context: Arc<RankContext>,
        beside: Option<&Self>,
    ) -> Result<Self, FusedError> {
        let inventory = Inventory::take(&module, &context)?;
        check_offload_fits(inventory.offloaded_bytes)?;
        if beside.is_none() {
            inventory.check_stepped(&session.update.lock(), &context)?;
        }
        let frozen = frozen::offloaded(&module, &inventory, &context);
        let module = match context.device() {
            None => module,
            Some(device) => {
                // The homes see to the values of these.
                let released = |id| inventory.role(id) == Some(Role::Released);
                let is_pinned = |id| released(id) || frozen.contains_key(&id);
                let module = match beside {
                    None => frozen::on_host(module, &frozen, &context),
                    Some(other) => frozen::shared(module, &frozen, &other.skeleton),
                };
                move_except(module, is_pinned, &device.clone().autodiff())
            }
        };
        let adapted = frozen.iter().filter(|(_, has_adapter)| **has_adapter);
        let mut adapters = inventory.adapters(adapted.map(|(id, _)| *id));
        let attach = Attach {
            inventory: &inventory,
            session,
            context: &context,
            beside: beside.map(|other| &*other.local_params),
            adapters: &adapters,
        };
        let AttachedParts {
            module,
            skeleton,
            local_params,
        } = attach.attach(module);
        let skeleton = without_leaves(skeleton, &local_params);
        adapters.retain(|id, _| inventory.role(*id) == Some(Role::Frozen));
        let module = match frozen.is_empty() {
            true => module,
            false => module.apply_reparameterization(FetchOnRead {
                context: context.clone(),
                parameters: frozen.keys().copied().collect(),
                adapters,
            }),
        };
        Ok(Self {
            module,
            skeleton,
            inventory,
            session: session.clone(),
            local_params: Arc::new(local_params),
            fetches_blocks: context.fetches_blocks(),
            context,
            frozen,
            block_order: None,
        })
    }

    /// The ordinary module with these values, the current ones of which it shares with the homes, and with running statistics of
    /// its own: in host memory if something waits there.
    pub(crate) fn export(&self, value: Value) -> M {
        let skeleton = self.skeleton_with_own_statistics();
        let module = match &self.context.engine {
            None => skeleton,
            Some(engine) => self.on_host(skeleton, &engine.host),
        };
        self.filled(module, value, ExportLocation::Ordinary)
    }

    /// The hollow module, with running statistics that the training does not update.
    fn skeleton_with_own_statistics(&self) -> M {
        with_own_statistics(self.skeleton.clone())
    }

    /// The hollow module on the host, but for the placeholders.
    fn on_host(&self, skeleton: M, host: &Device) -> M {
        let is_placeholder = |id| self.local_params.has(id);
        let host = host.clone().autodiff();
        let module = move_except(skeleton, is_placeholder, &host);
        force_reads(&module, &self.inventory);
        module
    }

    /// The ordinary module with every value at its home, and with running statistics of its own.
    pub(crate) fn export_in_place(&self) -> M {
        let skeleton = self.skeleton_with_own_statistics();
        self.filled(skeleton, Value::Current, ExportLocation::Stored)
    }

    /// The module for inference with these values, as it computes.
    pub(crate) fn valid(&self, value: Value) -> M {
        let frozen = self.frozen.keys().copied();
        let parameters: HashSet<ParamId> =
            self.local_params.fetched_on_read().chain(frozen).collect();
        let filled = || {
            let filled = self.filled(self.skeleton.clone(), value, ExportLocation::Computing);
            filled.valid().map(&mut SavedInFull {
                local_params: &self.local_params,
                value,
            })
        };
        if parameters.is_empty() {
            return filled();
        }
        let module = match &self.context.engine {
            // A parameter carries an adapter, or the way to the device.
            Some(engine) if self.frozen.values().any(|has_adapter| *has_adapter) => {
                let merged = self.export(value).valid().materialize();
                let device = engine.device.clone().inner();
                move_except(merged, |id| parameters.contains(&id), &device)
            }
            _ => filled(),
        };
        module.apply_reparameterization(FetchOnRead {
            context: self.context.clone(),
            parameters,
            adapters: HashMap::new(),
        })
    }

    /// The hollow module with the values of the parameters.
    fn filled(&self, skeleton: M, value: Value, place: ExportLocation) -> M {
        map_params(
            skeleton,
            |param| self.local_params.has(param.id()),
            |id, _placeholder| self.local_params.get(id).leaf(value, place),
        )
    }

    /// Lets go of the values of its leaves: their homes are the only owners then, and step them in place.
    pub(crate) fn drop_leaf_values(&mut self) {
        self.module = without_leaves(self.module.clone(), &self.local_params);
    }

    /// Gives its leaves the values that their homes have now.
    pub(crate) fn restore_leaf_values(&mut self) {
        let leaves = &self.local_params.leaves;
        self.module = map_params(
            self.module.clone(),
            |param| leaves.contains(&param.id()),
            |id, _nothing| self.local_params.get(id).leaf_or_missing(),
        );
    }

    /// What sees to the copies that blocks read.
    pub(crate) fn prefetcher(&self) -> Arc<dyn BlockPrefetch> {
        let engine = self.context.engine_of_blocks().cloned();
        let block_order = self.block_order.clone().unwrap_or_default();
        Arc::new(Prefetcher::new(
            self.local_params.clone(),
            engine,
            block_order,
        ))
    }

    /// Learns from a pass in which order the blocks run; from the first one, which of them stay on the device.
    pub(crate) fn update_block_order(&mut self, block_order: &BlockOrder) {
        if block_order.is_empty() {
            return;
        }
        let Some(engine) = self.context.engine_of_blocks() else {
            return;
        };
        if let (None, Some(offloaded)) = (&self.block_order, engine.config.offloaded_blocks()) {
            self.local_params.pin_blocks(block_order, offloaded);
        }
        self.block_order = Some(block_order.clone());
    }

    /// The path of a parameter in training.
    pub(crate) fn path(&self, id: ParamId) -> &str {
        &self.local_params.get(id).master.path
    }
}
