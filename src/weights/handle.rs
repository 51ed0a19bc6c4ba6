//! The handle that the module of a training has in place of a parameter.

use std::sync::Arc;

use backburn_base::{AnyTensor, Parameter, list};
use burn::backend::autodiff::NodeId;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Reparameterization};
use burn::tensor::{Device, Tensor};

use super::local_param::LocalParam;
use super::placeholder::Identity;
use crate::tap::{next_operation, node};

/// A reparameterization that redirects every read of a parameter to its local parameter. It has no parameters of its
/// own, and does not move with the module.
#[derive(Debug)]
pub(crate) struct Handle {
    local_param: Arc<LocalParam>,
    placeholder: Identity,
    /// Autodiff node of the placeholder; `None` on untracked backends.
    node: Option<NodeId>,
    /// The number of operations when `valid` first converted the module, which removes autodiff from the placeholder.
    valid_since: Option<u64>,
    /// The number of operations when the module was cloned in a closure. The clone has no values of its own.
    cloned_at: Option<u64>,
    change: Change,
}

/// A change of the module in a closure, as its handle records it. On CPU backends the placeholder does not show it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Nothing,
    /// Moved, to the device on which it is. A move to another device shows in the placeholder.
    Moved,
    /// Mapped, as by `no_grad`, and perhaps also moved.
    Mapped,
}

impl Handle {
    pub(crate) fn new<const D: usize>(
        local_param: Arc<LocalParam>,
        placeholder: &Tensor<D>,
    ) -> Self {
        Self {
            local_param,
            placeholder: Identity::of(placeholder),
            node: node(placeholder),
            valid_since: None,
            cloned_at: None,
            change: Change::Nothing,
        }
    }

    /// Panics if the module was cloned in an earlier step, and the value has been updated since then.
    fn check_clone(&self, cloned_at: u64) {
        let LocalParam {
            master, session, ..
        } = &*self.local_param;
        let begun = session.pass.lock().as_ref().map(|pass| pass.begun);
        // An update in this pass is reported by the read.
        if begun.is_some_and(|begun| (cloned_at + 1..begun).contains(&master.version())) {
            panic!(
                "parameter `{}` was read from a clone of the model that was made in an earlier step, and was updated since then. \
                 Such a clone has no values of its own: keep the result of `FusedOptimizer::model()` from between the steps",
                master.path
            );
        }
    }

    /// Returns the value without a gradient, for a module that was converted when there were this many operations.
    ///
    /// # Panics
    ///
    /// Panics if the value has been updated since then, unless the module was converted in the current pass.
    fn read_untrained(&self, converted_at: u64) -> AnyTensor {
        let LocalParam {
            master, session, ..
        } = &*self.local_param;
        let begun = session.pass.lock().as_ref().map(|pass| pass.begun);
        // Updates of the current pass may still be queued.
        if begun.is_none_or(|begun| converted_at < begun) && converted_at < master.version() {
            panic!(
                "parameter `{}` was read from a model that was converted (`valid()`, `no_grad()`) in an earlier step, before the \
                 parameter was updated, and has no values of its own: convert the model of the closure in each step, or \
                 `FusedOptimizer::model()` between steps, which keeps its values",
                master.path
            );
        }
        if let Some(cloned_at) = self.cloned_at {
            self.check_clone(cloned_at);
        }
        self.local_param.read_untrained()
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        let now = || {
            let scope = self.local_param.session.scope();
            scope.map(|_| next_operation())
        };
        Self {
            local_param: self.local_param.clone(),
            placeholder: self.placeholder.clone(),
            node: self.node,
            valid_since: self.valid_since,
            cloned_at: self.cloned_at.or_else(now),
            change: self.change,
        }
    }
}

impl Module for Handle {
    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        devices
    }

    fn fork(self, _device: &Device) -> Self {
        self
    }

    fn to_device(self, _device: &Device) -> Self {
        let change = match self.change {
            Change::Nothing => Change::Moved,
            change => change,
        };
        Self { change, ..self }
    }

    fn train(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        let valid_since = Some(self.valid_since.unwrap_or_else(next_operation));
        Self {
            valid_since,
            ..self.clone()
        }
    }

    fn materialize(self) -> Self {
        self
    }

    /// Shows the leaf of the stand-in for the applied gradient, which exists after a backward pass in the closure, except in a module from
    /// `valid`, which may be saved then.
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        let applied = self.local_param.registered();
        if let Some(applied) = applied.filter(|_| self.valid_since.is_none()) {
            applied.visit(visitor);
        }
    }

    fn map<P: ModuleMapper>(self, _mapper: &mut P) -> Self {
        let change = match self.local_param.session.scope() {
            Some(_) => Change::Mapped,
            None => self.change,
        };
        Self { change, ..self }
    }
}

/// The name of the reparameterization that fetches a parameter whenever it is read.
pub(super) const FETCH_HANDLE: &str = "backburn_fetch";

/// Returns `true` if a master holds the value of the parameter.
pub(super) fn is_attached(parameter: &Parameter) -> bool {
    parameter.reparameterization.as_deref() == Some(Handle::NAME)
}

/// Returns the float parameters of `module`, without the [stand-ins](super::applied) that handles show, which mappers don't reach.
pub(super) fn parameters<M: Module>(module: &M) -> Vec<Parameter> {
    let mut attached = None;
    let is_own = |parameter: &Parameter| {
        let is_stand_in = attached.as_ref() == Some(&parameter.path);
        attached = is_attached(parameter).then(|| format!("{}.{}", parameter.path, Handle::NAME));
        !is_stand_in
    };
    list(module).into_iter().filter(is_own).collect()
}

/// Returns `true` if a master holds the value, or if it is fetched whenever it is read.
pub(super) fn carries_handle(parameter: &Parameter) -> bool {
    is_attached(parameter) || parameter.reparameterization.as_deref() == Some(FETCH_HANDLE)
}

impl Reparameterization for Handle {
    const NAME: &'static str = "backburn";

    /// Reads the parameter.
    ///
    /// The placeholder shows which value to return: `valid` and `no_grad` on the module also act on the placeholder.
    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let local_param = &self.local_param;
        // The unchanged placeholder: any operation, also one that returns its input, makes another node.
        if self.node.is_some() && node(&base) == self.node {
            if let Some(cloned_at) = self.cloned_at {
                self.check_clone(cloned_at);
            }
            return local_param.read().of_dims();
        }
        if Identity::of(&base) != self.placeholder {
            panic!(
                "parameter `{}` was mapped (`Param::map`), moved or loaded in the closure of a fused step, where the \
                 model has no values of its own: change it between steps with \
                 `FusedOptimizer::change_model`, or compute with another value in the closure \
                 (`param.val().transpose()`, `param.val() + noise`)",
                local_param.master.path
            );
        }
        let value = match node(&base) {
            None => self.read_untrained(self.valid_since.unwrap_or(u64::MAX)),
            // `no_grad` makes a node, whose id is the number of operations so far.
            Some(made) if !base.is_tracked() && self.change != Change::Moved => {
                local_param.constant_of(self.read_untrained(made.value))
            }
            Some(_) => {
                if let Some(cloned_at) = self.cloned_at {
                    self.check_clone(cloned_at);
                }
                local_param.read()
            }
        };
        value.of_dims()
    }
}
