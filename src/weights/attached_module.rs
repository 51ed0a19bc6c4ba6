use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use backburn_base::{AnyTensor, Parameter, list};
use burn::module::{Module, ParamId};

use super::attach::{HandleAttacher, ValueExtractor};
use super::entry::Role;
use super::fetch_on_read::FetchOnRead;
use super::frozen;
use super::inventory::Inventory;
use super::local_param::{ExportLocation, Value};
use super::local_params::LocalParams;
use super::prefetcher::Prefetcher;
use super::saved_in_full::SavedInFull;
use super::transfer::{force_reads, move_except};
use crate::error::FusedError;
use crate::offload::check_offload_fits;
use crate::parameters::{map_params, take_values, with_own_statistics};
use crate::pass::{BlockOrder, BlockPrefetch, Session};
use crate::placement::RankContext;
use crate::quantized::is_shape_stub;

/// A module whose trainable values are held by masters.
pub(crate) struct AttachedModule<M> {
    /// The module with handles: a read of a parameter calls its local parameter.
    pub(crate) module: M,
    /// The ordinary module, with placeholders for the trainable values.
    pub(crate) skeleton: M,
    pub(crate) inventory: Inventory,
    pub(crate) session: Arc<Session>,
    pub(crate) local_params: Arc<LocalParams>,
    pub(crate) context: Arc<RankContext>,
    /// `true` if copies are fetched and dropped with the runs of blocks.
    pub(crate) has_block_copies: bool,
    /// The offloaded frozen parameters; `true` if one has an adapter.
    offloaded_frozen: HashMap<ParamId, bool>,
    /// Block order of the last pass with blocks.
    block_order: Option<BlockOrder>,
}

/// Returns the quantized parameters of `module`.
fn quantized<M: Module>(module: &M) -> impl Iterator<Item = ParamId> {
    let quantized = |it: &Parameter| is_shape_stub(it.param.value().dtype());
    let parameters = list(module).into_iter().filter(quantized);
    parameters.map(|it| it.param.id())
}

/// Returns `module` without the values of its retained parameters.
fn without_retained<M: Module>(module: M, local_params: &LocalParams) -> M {
    match &local_params.retained[..] {
        [] => module,
        retained => take_values(module, |id| retained.contains(&id), |device| device).0,
    }
}

impl<M: Module> AttachedModule<M> {
    /// Attaches handles to `module`. A replica shares its masters with the module `replica_of` of another rank.
    pub(crate) fn new(
        module: M,
        session: &Arc<Session>,
        context: Arc<RankContext>,
        replica_of: Option<&Self>,
    ) -> Result<Self, FusedError> {
        let inventory = Inventory::of(&module, &context)?;
        check_offload_fits(inventory.offloaded_bytes)?;
        if replica_of.is_none() {
            inventory.check_stepped(&session.optimizer.lock(), &context)?;
        }
        let offloaded_frozen = frozen::offloaded(&module, &inventory, &context);
        let module = match context.device() {
            None => module,
            Some(device) => {
                // Masters place these values.
                let released = |id| inventory.role(id) == Some(Role::Released);
                let stays = |id| released(id) || offloaded_frozen.contains_key(&id);
                let module = match replica_of {
                    None => frozen::on_host(module, &offloaded_frozen, &context),
                    Some(other) => frozen::shared(module, &offloaded_frozen, &other.skeleton),
                };
                move_except(module, stays, &device.clone().autodiff())
            }
        };
        let adapted = offloaded_frozen
            .iter()
            .filter(|(_, has_adapter)| **has_adapter);
        let mut adapters = inventory.adapters(adapted.map(|(id, _)| *id));
        let mut extractor = ValueExtractor {
            inventory: &inventory,
            session,
            context: &context,
            replica_of: replica_of.map(|other| &*other.local_params),
            adapters: &adapters,
            reads: inventory.count(Role::Released),
            local_params: LocalParams::default(),
            storages: Vec::new(),
            devices: Vec::new(),
        };
        let skeleton = module.map(&mut extractor);
        let mut local_params = extractor.local_params;
        local_params.frozen = inventory.frozen(&skeleton);
        let handles = HandleAttacher(&local_params);
        let module = skeleton.clone().apply_reparameterization(handles);
        let skeleton = without_retained(skeleton, &local_params);
        adapters.retain(|id, _| inventory.role(*id) == Some(Role::Frozen));
        let module = match offloaded_frozen.is_empty() {
            true => module,
            false => module.apply_reparameterization(FetchOnRead {
                context: context.clone(),
                parameters: offloaded_frozen.keys().copied().collect(),
                adapters,
            }),
        };
        Ok(Self {
            module,
            skeleton,
            inventory,
            session: session.clone(),
            local_params: Arc::new(local_params),
            has_block_copies: context.has_block_copies(),
            context,
            offloaded_frozen,
            block_order: None,
        })
    }

    /// Returns an ordinary module with these values and its own running statistics, in host memory if anything is
    /// offloaded. Current values are shared with the masters.
    pub(crate) fn export(&self, value: Value) -> M {
        let skeleton = with_own_statistics(self.skeleton.clone());
        let module = match &self.context.engine {
            None => skeleton,
            Some(engine) => {
                let is_trained = |id| self.local_params.has(id);
                let host = engine.host.clone().autodiff();
                let module = move_except(skeleton, is_trained, &host);
                force_reads(&module, &self.inventory);
                module
            }
        };
        self.filled(module, value, ExportLocation::Ordinary)
    }

    /// Returns an ordinary module with its own running statistics. Every value stays at the location of its master.
    pub(crate) fn export_in_place(&self) -> M {
        let skeleton = with_own_statistics(self.skeleton.clone());
        self.filled(skeleton, Value::Current, ExportLocation::Stored)
    }

    /// Returns a module for inference with these values, in the compute type.
    pub(crate) fn valid(&self, value: Value) -> M {
        let frozen = self.offloaded_frozen.keys().copied();
        let mut parameters: HashSet<ParamId> =
            self.local_params.on_demand().chain(frozen).collect();
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
            // A parameter carries one reparameterization: an adapter or a fetch handle.
            Some(engine)
                if self
                    .offloaded_frozen
                    .values()
                    .any(|has_adapter| *has_adapter) =>
            {
                // An adapter is merged in the type of its factors, which is that of the training.
                let computed = map_params(
                    self.export(value).valid(),
                    |param| self.local_params.has(param.id()),
                    |id, value| value.in_type(self.local_params.get(id).copy.dtype),
                );
                let merged = computed.materialize();
                // Their merged weights are dense, and stay on the host.
                parameters.extend(quantized(&self.skeleton));
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

    /// Returns the skeleton filled with parameter values.
    fn filled(&self, skeleton: M, value: Value, location: ExportLocation) -> M {
        map_params(
            skeleton,
            |param| self.local_params.has(param.id()),
            |id, _placeholder| self.local_params.get(id).exported(value, location),
        )
    }

    /// Returns the values of the frozen parameters.
    pub(crate) fn frozen_values(&self) -> impl Iterator<Item = AnyTensor> {
        let is_frozen = |it: &Parameter| !self.local_params.has(it.param.id());
        let frozen = list(&self.skeleton).into_iter().filter(is_frozen);
        frozen.map(|it| it.param.value())
    }

    /// Drops the values of the retained parameters: the masters then own them alone and step them in place.
    pub(crate) fn drop_retained_values(&mut self) {
        self.module = without_retained(self.module.clone(), &self.local_params);
    }

    /// Fills the retained parameters with the current values of their masters.
    pub(crate) fn restore_retained_values(&mut self) {
        let retained = &self.local_params.retained;
        self.module = map_params(
            self.module.clone(),
            |param| retained.contains(&param.id()),
            |id, _nothing| self.local_params.get(id).leaf_or_missing(),
        );
    }

    /// Returns the prefetcher of the copies that blocks read.
    pub(crate) fn prefetcher(&self) -> Arc<dyn BlockPrefetch> {
        let engine = self.context.engine_of_blocks().cloned();
        let block_order = self.block_order.clone().unwrap_or_default();
        let local_params = self.local_params.clone();
        Arc::new(Prefetcher::new(local_params, engine, block_order))
    }

    /// Records the block order of a pass. The first pass also decides which blocks stay on the device.
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

    /// Returns the path of a trainable parameter.
    pub(crate) fn path(&self, id: ParamId) -> &str {
        &self.local_params.get(id).master.path
    }
}
