use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, Param, ParamId, Reparameterizer};
use burn::tensor::Tensor;

use super::Slot;
use super::handle::SlotHandle;
use super::inventory::{Inventory, Role};
use super::parameter::ParameterSlot;
use super::placeholder::trap;
use crate::pass::Pass;

/// Brings `module` into fused form: the value of every parameter to be tapped moves into a slot.
///
/// All other parameters stay as they are.
pub(crate) fn attach<M: Module>(
    module: M,
    inventory: &Inventory,
    pass: &Arc<Pass>,
) -> (M, HashMap<ParamId, Arc<dyn Slot>>) {
    let mut slots = HashMap::new();
    let module = module.apply_reparameterization(Attach {
        inventory,
        pass,
        trap_tick: inventory.count(Role::Released).0,
        slots: &mut slots,
    });
    (module, slots)
}

struct Attach<'a> {
    inventory: &'a Inventory,
    pass: &'a Arc<Pass>,
    /// A pass reads every parameter once at most, so this tick is deeper than all of them.
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

        let placeholder = trap(&value, path, self.pass, self.trap_tick, strategy);
        let slot = ParameterSlot::new(id, path, value, strategy, self.pass.clone());
        let slot = Arc::new(slot);
        self.slots.insert(id, slot.clone());

        let param = Param::from_mapped_value(id, placeholder, mapper);
        (param, Some(SlotHandle::new(slot)))
    }
}
