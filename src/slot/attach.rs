use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, Param, ParamId, Reparameterizer};
use burn::tensor::Tensor;

use super::handle::SlotHandle;
use super::inventory::{Inventory, Role};
use super::parameter::{ParameterSlot, Which};
use super::placeholder::trap;
use super::slots::Slots;
use crate::pass::Session;

/// Brings `module` into fused form: the value of every parameter whose gradient is released moves into
/// a slot; one that is retained to the end of the pass is a leaf of the module, which shares it with its slot.
///
/// All other parameters stay as they are.
pub(crate) fn attach<M: Module>(
    module: M,
    inventory: &Inventory,
    session: &Arc<Session>,
    adapters: &HashMap<ParamId, Arc<str>>,
) -> (M, Slots) {
    let mut slots = Slots::default();
    let module = module.apply_reparameterization(Attach {
        inventory,
        session,
        adapters,
        reads: inventory.count(Role::Released).0,
        slots: &mut slots,
    });
    (module, slots)
}

struct Attach<'a> {
    inventory: &'a Inventory,
    session: &'a Arc<Session>,
    /// Those of bases that wait on the host, and the path of the base of each.
    adapters: &'a HashMap<ParamId, Arc<str>>,
    /// A graph reads every parameter once at most, so what is deeper than as many reads is deeper than all of them.
    reads: usize,
    slots: &'a mut Slots,
}

impl Reparameterizer for Attach<'_> {
    type Reparam = SlotHandle;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<SlotHandle>) {
        let role = self.inventory.role(param.id);
        if let None | Some(Role::Frozen) = role {
            return (param, None);
        }
        let session = self.session;
        if role == Some(Role::Retained) {
            let value = param.base();
            let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
            let slot = ParameterSlot::new(
                param.id,
                path,
                value.inner(),
                strategy,
                session.clone(),
                None,
            );
            self.slots.add_leaf(param.id, Arc::new(slot));
            return (param, None);
        }
        let (id, value, mapper) = param.consume();
        let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
        let value = value.inner();
        let placement = session.placement();
        let mut slot = ParameterSlot::new(id, path, value, strategy, session.clone(), placement);
        slot.waiting_base = self.adapters.get(&id).cloned();
        let slot = Arc::new(slot);
        let likeness = slot.likeness();
        let placeholder = trap(likeness, path, session, self.reads, strategy);
        self.slots.add(id, slot.clone());
        let handle = SlotHandle::new(slot.clone(), &placeholder);

        // A clone that is saved holds the values; one that is loaded would hold none.
        let (saved, path) = (mapper.clone(), path.to_string());
        let param = Param::from_mapped_value(id, placeholder, mapper)
            .save_mapper(move |_placeholder| saved.on_save(slot.leaf(Which::Rests)))
            .load_mapper(move |_loaded| {
                panic!(
                    "a record was loaded into parameter `{path}` of a model in a fused step, which has \
                     no values of its own: load it between steps with `FusedOptimizer::change_model`"
                )
            });
        (param, Some(handle))
    }
}
