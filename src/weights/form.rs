use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::Device;

use super::attach::{Attach, Attached};
use super::come_over::ComeOver;
use super::entry::Role;
use super::fetch_ahead::FetchAhead;
use super::frozen;
use super::inventory::Inventory;
use super::moved::{look_at_once, moved_but_for};
use super::restored::{Place, Value};
use super::saved_in_full::SavedInFull;
use super::views::Views;
use crate::error::FusedError;
use crate::layout::Layout;
use crate::offload::check_offload_fits;
use crate::parameters::{exchange, taken, with_own_statistics};
use crate::pass::{Course, Foresight, Session};

/// A module in fused form: its trainable values are at their homes.
pub(crate) struct FusedForm<M> {
    /// Reads of its parameters go to the views.
    pub(crate) module: M,
    /// The ordinary module, with placeholders for the trainable values.
    pub(crate) hollow: M,
    pub(crate) inventory: Inventory,
    pub(crate) session: Arc<Session>,
    pub(crate) views: Arc<Views>,
    pub(crate) layout: Arc<Layout>,
    /// Whether copies come and go with the runs of blocks.
    pub(crate) brings: bool,
    /// The frozen parameters that wait on the host, and whether each carries an adapter.
    frozen: HashMap<ParamId, bool>,
    /// Of the last pass with blocks.
    course: Option<Course>,
}

/// `module` without the values of the parameters that are ordinary leaves.
fn without_leaves<M: Module>(module: M, views: &Views) -> M {
    match &views.leaves[..] {
        [] => module,
        leaves => taken(module, |id| leaves.contains(&id), |device| device).0,
    }
}

impl<M: Module> FusedForm<M> {
    /// Brings `module` into fused form, or says why it can't be. A replica shares its homes with the form of another rank, `beside` it.
    pub(crate) fn new(
        module: M,
        session: &Arc<Session>,
        layout: Arc<Layout>,
        beside: Option<&Self>,
    ) -> Result<Self, FusedError> {
        let inventory = Inventory::take(&module, &layout)?;
        check_offload_fits(inventory.leaving)?;
        if beside.is_none() {
            inventory.check_stepped(&session.update.lock(), &layout)?;
        }
        let frozen = frozen::waiting(&module, &inventory, &layout);
        let module = match layout.device() {
            None => module,
            Some(device) => {
                // The homes see to the values of these.
                let released = |id| inventory.role(id) == Some(Role::Released);
                let stays = |id| released(id) || frozen.contains_key(&id);
                let module = match beside {
                    None => frozen::on_host(module, &frozen, &layout),
                    Some(other) => frozen::shared(module, &frozen, &other.hollow),
                };
                moved_but_for(module, stays, &device.clone().autodiff())
            }
        };
        let adapted = frozen.iter().filter(|(_, has_adapter)| **has_adapter);
        let mut adapters = inventory.adapters(adapted.map(|(id, _)| *id));
        let attach = Attach {
            inventory: &inventory,
            session,
            layout: &layout,
            beside: beside.map(|other| &*other.views),
            adapters: &adapters,
        };
        let Attached {
            module,
            hollow,
            views,
        } = attach.attach(module);
        let hollow = without_leaves(hollow, &views);
        adapters.retain(|id, _| inventory.role(*id) == Some(Role::Frozen));
        let module = match frozen.is_empty() {
            true => module,
            false => module.apply_reparameterization(ComeOver {
                layout: layout.clone(),
                parameters: frozen.keys().copied().collect(),
                adapters,
            }),
        };
        Ok(Self {
            module,
            hollow,
            inventory,
            session: session.clone(),
            views: Arc::new(views),
            brings: layout.brings(),
            layout,
            frozen,
            course: None,
        })
    }

    /// The ordinary module with these values, the current ones of which it shares with the homes, and with running statistics of
    /// its own: in host memory if something waits there.
    pub(crate) fn ordinary(&self, value: Value) -> M {
        let hollow = self.hollow_with_own_statistics();
        let module = match &self.layout.placement {
            None => hollow,
            Some(placement) => self.on_host(hollow, &placement.host),
        };
        self.filled(module, value, Place::Ordinary)
    }

    /// The hollow module, with running statistics that the training does not update.
    fn hollow_with_own_statistics(&self) -> M {
        with_own_statistics(self.hollow.clone())
    }

    /// The hollow module on the host, but for the placeholders.
    fn on_host(&self, hollow: M, host: &Device) -> M {
        let is_placeholder = |id| self.views.has(id);
        let host = host.clone().autodiff();
        let module = moved_but_for(hollow, is_placeholder, &host);
        look_at_once(&module, &self.inventory);
        module
    }

    /// The ordinary module with every value at its home, and with running statistics of its own.
    pub(crate) fn at_home(&self) -> M {
        let hollow = self.hollow_with_own_statistics();
        self.filled(hollow, Value::Current, Place::Home)
    }

    /// The module for inference with these values, as it computes.
    pub(crate) fn valid(&self, value: Value) -> M {
        let frozen = self.frozen.keys().copied();
        let parameters: HashSet<ParamId> = self.views.coming_over().chain(frozen).collect();
        let filled = || {
            let filled = self.filled(self.hollow.clone(), value, Place::Computing);
            filled.valid().map(&mut SavedInFull {
                views: &self.views,
                value,
            })
        };
        if parameters.is_empty() {
            return filled();
        }
        let module = match &self.layout.placement {
            // A parameter carries an adapter, or the way to the device.
            Some(placement) if self.frozen.values().any(|has_adapter| *has_adapter) => {
                let merged = self.ordinary(value).valid().materialize();
                let device = placement.device.clone().inner();
                moved_but_for(merged, |id| parameters.contains(&id), &device)
            }
            _ => filled(),
        };
        module.apply_reparameterization(ComeOver {
            layout: self.layout.clone(),
            parameters,
            adapters: HashMap::new(),
        })
    }

    /// The hollow module with the values of the parameters.
    fn filled(&self, hollow: M, value: Value, place: Place) -> M {
        exchange(
            hollow,
            |param| self.views.has(param.id()),
            |id, _placeholder| self.views.get(id).leaf(value, place),
        )
    }

    /// Lets go of the values of its leaves: their homes are the only owners then, and step them in place.
    pub(crate) fn let_go_of_leaves(&mut self) {
        self.module = without_leaves(self.module.clone(), &self.views);
    }

    /// Gives its leaves the values that their homes have now.
    pub(crate) fn renew_leaves(&mut self) {
        let leaves = &self.views.leaves;
        self.module = exchange(
            self.module.clone(),
            |param| leaves.contains(&param.id()),
            |id, _nothing| self.views.get(id).leaf_or_gone(),
        );
    }

    /// What sees to the copies that blocks read.
    pub(crate) fn foresight(&self) -> Arc<dyn Foresight> {
        let placement = self.layout.placement_of_blocks().cloned();
        let course = self.course.clone().unwrap_or_default();
        Arc::new(FetchAhead::new(self.views.clone(), placement, course))
    }

    /// Learns from a pass in which order the blocks run; from the first one, which of them stay on the device.
    pub(crate) fn learn_course(&mut self, course: &Course) {
        if course.is_empty() {
            return;
        }
        let Some(placement) = self.layout.placement_of_blocks() else {
            return;
        };
        if let (None, Some(waiting)) = (&self.course, placement.config.offloaded_blocks()) {
            self.views.keep_copies(course, waiting);
        }
        self.course = Some(course.clone());
    }

    /// The path of a parameter in training.
    pub(crate) fn path(&self, id: ParamId) -> &str {
        &self.views.get(id).home.path
    }
}
