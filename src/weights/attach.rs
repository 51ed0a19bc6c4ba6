use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param, ParamId, Reparameterizer};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};

use super::entry::{Entry, Role};
use super::handle::Handle;
use super::home::{Ground, Home};
use super::inventory::Inventory;
use super::placeholder::placeholder;
use super::restored::{Place, Value};
use super::view::View;
use super::views::Views;
use crate::layout::Layout;
use crate::parameters::AnyTensor;
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

/// A module in fused form.
pub(super) struct Attached<M> {
    pub(super) module: M,
    /// The ordinary one, with the same placeholders.
    pub(super) hollow: M,
    pub(super) views: Views,
}

impl Attach<'_> {
    /// Moves the value of every parameter whose gradient is released to its home; one that is retained to the end of the
    /// pass is a leaf of the module, which shares it with its home. All other parameters stay as they are.
    pub(super) fn attach<M: Module>(&self, module: M) -> Attached<M> {
        let mut emptying = Emptying {
            attach: self,
            reads: self.inventory.count(Role::Released).0,
            views: Views::default(),
            grounds: Vec::new(),
            devices: Vec::new(),
        };
        let hollow = module.map(&mut emptying);
        let views = emptying.views;
        let module = hollow.clone().apply_reparameterization(Handing(&views));
        Attached {
            module,
            hollow,
            views,
        }
    }
}

/// Takes the values in training out of a module.
struct Emptying<'a> {
    attach: &'a Attach<'a>,
    /// A graph reads every parameter once at most, so what is deeper than as many reads is deeper than all of them.
    reads: usize,
    views: Views,
    /// Where homes are, and where the model computes: one of each for all parameters.
    grounds: Vec<Arc<Ground>>,
    devices: Vec<Arc<Device>>,
}

impl Emptying<'_> {
    /// The view of a parameter whose `value` has no autodiff, and rests where its role lets it.
    fn view(
        &mut self,
        id: ParamId,
        entry: &Entry,
        value: AnyTensor,
        strategy: GradientCheckpointingStrategy,
    ) -> View {
        let attach = self.attach;
        let (layout, device) = (attach.layout, value.device());
        let is_leaf = entry.role == Role::Retained;
        let computes_on = layout.computes_on(&device);
        let computes_on = one_of(
            &mut self.devices,
            |it| **it == computes_on,
            || computes_on.clone(),
        );
        let home = match attach.beside {
            Some(beside) => beside.get(id).home.clone(),
            None => {
                let site = match is_leaf {
                    true => layout.site_of_leaf(id, &device),
                    false => layout.site(id, entry.elements(), value.dtype(), &device),
                };
                let new = || Ground::new(site.clone(), layout);
                let ground = one_of(&mut self.grounds, |it| it.site == site, new);
                let path = entry.path.clone();
                Arc::new(Home::new(id, path, value, strategy, ground, layout))
            }
        };
        let session = attach.session.clone();
        let mut view = View::new(home, session, layout.clone(), computes_on);
        view.is_leaf = is_leaf;
        view.waiting_base = attach.adapters.get(&id).cloned();
        view
    }
}

/// The one of `known` that `is` tells, or a new one.
fn one_of<T>(
    known: &mut Vec<Arc<T>>,
    is: impl Fn(&Arc<T>) -> bool,
    new: impl FnOnce() -> T,
) -> Arc<T> {
    if let Some(found) = known.iter().find(|known| is(known)) {
        return found.clone();
    }
    let new = Arc::new(new());
    known.push(new.clone());
    new
}

impl ModuleMapper for Emptying<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let inventory = self.attach.inventory;
        let entry = inventory.get(param.id);
        let Some(entry) = entry.filter(|entry| entry.role != Role::Frozen) else {
            return param;
        };
        let strategy = param.base().gradient_checkpointing_strategy();
        let strategy = strategy.unwrap_or_default();
        if entry.role == Role::Retained {
            let value = param.base().inner();
            let view = self.view(param.id, entry, value.into(), strategy);
            self.views.add(Arc::new(view));
            return param;
        }
        let (id, value, mapper) = param.consume();
        let view = self.view(id, entry, value.inner().into(), strategy);
        let View { dtype, device, .. } = &view;
        let below = || {
            let mut clocks = self.attach.session.clocks.lock();
            clocks.of(device, strategy).below(self.reads)
        };
        let Entry { path, shape, .. } = entry;
        let placeholder = placeholder(path, shape, *dtype, device, strategy, below);
        self.views.add(Arc::new(view));
        Param::from_mapped_value(id, placeholder, mapper)
    }
}

/// Hands each placeholder the way to its view.
struct Handing<'a>(&'a Views);

impl Reparameterizer for Handing<'_> {
    type Reparam = Handle;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Handle>) {
        if !self.0.has_released(param.id) {
            return (param, None);
        }
        let view = self.0.get(param.id).clone();
        let handle = Handle::new(view.clone(), &param.base());
        // A clone that is saved holds the values; one that is loaded would hold none.
        let (_, _, saved) = param.clone().consume();
        let path = view.home.path.clone();
        let param = param
            .save_mapper(move |_placeholder| {
                let value = view.leaf(Value::Current, Place::Ordinary);
                saved.on_save(value.of_rank())
            })
            .load_mapper(move |_loaded| {
                panic!(
                    "a record was loaded into parameter `{path}` of a model in a fused step, which has \
                     no values of its own: load it between steps with `FusedOptimizer::change_model`"
                )
            });
        (param, Some(handle))
    }
}
