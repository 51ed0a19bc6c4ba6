use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::module::{Module, Reparameterization};
use burn::tensor::Tensor;

use super::local_param::LocalParam;
use super::placeholder::Identity;
use crate::parameters::Parameter;
use crate::tap::node;

/// A reparameterization that redirects every read of a parameter to its local parameter. It has no parameters of its
/// own, and does not move with the module.
#[derive(Module, Debug)]
pub(crate) struct Handle {
    #[module(skip)]
    local_param: Arc<LocalParam>,
    #[module(skip)]
    placeholder: Identity,
    /// Autodiff node of the placeholder; `None` on untracked backends.
    #[module(skip)]
    node: Option<NodeId>,
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
        }
    }
}

/// The name of the reparameterization that fetches a parameter whenever it is read.
pub(super) const FETCH_HANDLE: &str = "backburn_way";

/// Returns `true` if a master holds the value of the parameter.
pub(super) fn is_attached(parameter: &Parameter) -> bool {
    parameter.reparameterization.as_deref() == Some(Handle::NAME)
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
        // Every operation creates a new node, even if it returns its input.
        if self.node.is_some() && node(&base) == self.node {
            return local_param.read().of_rank();
        }
        if Identity::of(&base) != self.placeholder {
            panic!(
                "parameter `{}` was mapped (`Param::map`), moved or loaded in the closure of a fused step, where the \
                 model does not contain the values: change it between steps with \
                 `FusedOptimizer::change_model`, or compute with a changed value in the closure \
                 (`param.val().transpose()`, `param.val() + noise`)",
                local_param.master.path
            );
        }
        let value = if !base.is_autodiff() {
            local_param.read_untrained()
        } else if !base.is_tracked() && node(&base) != self.node {
            local_param.constant_of(local_param.read_untrained())
        } else {
            local_param.read()
        };
        value.of_rank()
    }
}
