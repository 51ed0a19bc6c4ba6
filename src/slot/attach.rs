use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, Param, ParamId, Reparameterizer};
use burn::tensor::Tensor;

use super::Slot;
use super::handle::SlotHandle;
use super::inventory::{Inventory, Role};
use super::parameter::ParameterSlot;
use super::placeholder::trap;
use crate::pass::Session;

/// Brings `module` into fused form: the value of every parameter whose gradient is released moves into
/// a slot.
///
/// All other parameters stay as they are.
pub(crate) fn attach<M: Module>(
    module: M,
    inventory: &Inventory,
    session: &Arc<Session>,
    waiting_bases: &[String],
) -> (M, HashMap<ParamId, Arc<dyn Slot>>) {
    let mut slots = HashMap::new();
    let module = module.apply_reparameterization(Attach {
        inventory,
        session,
        waiting_bases,
        trap_tick: inventory.count(Role::Released).0,
        slots: &mut slots,
    });
    (module, slots)
}

struct Attach<'a> {
    inventory: &'a Inventory,
    session: &'a Arc<Session>,
    /// The paths of adapted parameters that wait on the host.
    waiting_bases: &'a [String],
    /// A graph reads every parameter once at most, so this tick is deeper than all of them.
    trap_tick: usize,
    slots: &'a mut HashMap<ParamId, Arc<dyn Slot>>,
}

impl Reparameterizer for Attach<'_> {
    type Reparam = SlotHandle;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<SlotHandle>) {
        if self.inventory.role(param.id) != Some(Role::Released) {
            return (param, None);
        }
        let (id, value, mapper) = param.consume();
        let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
        let value = value.inner();
        let (session, tick) = (self.session, self.trap_tick);
        let mut slot = ParameterSlot::new(id, path, value, strategy, session.clone());
        let adapts = |base: &&String| path.strip_prefix(*base).is_some_and(|p| p.starts_with('.'));
        slot.waiting_base = self.waiting_bases.iter().find(adapts).cloned();
        let slot = Arc::new(slot);
        let likeness = slot.likeness();
        session.wind_clock(&likeness.device, strategy, tick + 1);
        let placeholder = trap(likeness, path, session, tick, strategy);
        self.slots.insert(id, slot.clone());
        let handle = SlotHandle::new(slot.clone(), &placeholder);

        // A clone that is saved holds the values; one that is loaded would hold none.
        let (saved, path) = (mapper.clone(), path.to_string());
        let param = Param::from_mapped_value(id, placeholder, mapper)
            .save_mapper(move |_placeholder| saved.on_save(slot.leaf()))
            .load_mapper(move |_loaded| {
                panic!(
                    "a record was loaded into parameter `{path}` of a model in a fused step, which has \
                     no values of its own: load it between steps with `FusedOptimizer::change_model`"
                )
            });
        (param, Some(handle))
    }
}
