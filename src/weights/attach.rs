use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, Param, ParamId, Reparameterizer};
use burn::tensor::{GradientCheckpointingStrategy, Tensor};

use super::handle::Handle;
use super::home::Home;
use super::inventory::{Inventory, Role};
use super::placeholder::trap;
use super::terms::Terms;
use super::view::{View, Which};
use super::views::Views;
use crate::layout::Layout;
use crate::pass::Session;

/// Brings a module into fused form.
pub(super) struct Attach<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) session: &'a Arc<Session>,
    pub(super) layout: &'a Arc<Layout>,
    /// The views of another rank, with which this one shares its homes.
    pub(super) beside: Option<&'a Views>,
    /// Those of bases that wait on the host, and the path of the base of each.
    pub(super) adapters: &'a HashMap<ParamId, Arc<str>>,
}

impl Attach<'_> {
    /// Moves the value of every parameter whose gradient is released to its home; one that is retained to the end of the
    /// pass is a leaf of the module, which shares it with its home. All other parameters stay as they are.
    pub(super) fn attach<M: Module>(&self, module: M) -> (M, Views) {
        let mut views = Views::default();
        let module = module.apply_reparameterization(Attaching {
            attach: self,
            reads: self.inventory.count(Role::Released).0,
            views: &mut views,
        });
        (module, views)
    }

    /// The view of a parameter whose `value` has no autodiff, and rests where `role` lets it.
    fn view<const D: usize>(
        &self,
        id: ParamId,
        path: &str,
        role: Role,
        value: Tensor<D>,
        strategy: GradientCheckpointingStrategy,
    ) -> View<D> {
        let (layout, device) = (self.layout, value.device());
        let home = match self.beside {
            Some(beside) => beside.home(id),
            None => {
                let site = match role {
                    Role::Retained => layout.site_of_leaf(id, &device),
                    _ => {
                        let elements = value.shape().num_elements();
                        layout.site(id, elements, value.dtype(), &device)
                    }
                };
                Arc::new(Home::new(id, path, value, strategy, site, layout))
            }
        };
        let mut terms = Terms::new(&home, layout.clone(), &device);
        terms.is_leaf = role == Role::Retained;
        terms.waiting_base = self.adapters.get(&id).cloned();
        View::new(home, self.session.clone(), terms)
    }
}

struct Attaching<'a, 'v> {
    attach: &'a Attach<'a>,
    /// A graph reads every parameter once at most, so what is deeper than as many reads is deeper than all of them.
    reads: usize,
    views: &'v mut Views,
}

impl Reparameterizer for Attaching<'_, '_> {
    type Reparam = Handle;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Handle>) {
        let role = match self.attach.inventory.role(param.id) {
            None | Some(Role::Frozen) => return (param, None),
            Some(role) => role,
        };
        if role == Role::Retained {
            let value = param.base();
            let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
            let value = value.inner();
            let view = self.attach.view(param.id, path, role, value, strategy);
            self.views.add_leaf(param.id, Arc::new(view));
            return (param, None);
        }
        let (id, value, mapper) = param.consume();
        let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
        let view = self.attach.view(id, path, role, value.inner(), strategy);
        let view = Arc::new(view);
        let session = self.attach.session;
        let placeholder = trap(&view.terms.likeness, path, session, self.reads, strategy);
        self.views.add(id, view.clone());
        let handle = Handle::new(view.clone(), &placeholder);

        // A clone that is saved holds the values; one that is loaded would hold none.
        let (saved, path) = (mapper.clone(), path.to_string());
        let param = Param::from_mapped_value(id, placeholder, mapper)
            .save_mapper(move |_placeholder| saved.on_save(view.leaf(Which::Rests)))
            .load_mapper(move |_loaded| {
                panic!(
                    "a record was loaded into parameter `{path}` of a model in a fused step, which has \
                     no values of its own: load it between steps with `FusedOptimizer::change_model`"
                )
            });
        (param, Some(handle))
    }
}
