use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::module::{Module, Reparameterization};
use burn::tensor::Tensor;

use super::local_param::LocalParam;
use super::placeholder::Identity;
use crate::parameters::Parameter;
use crate::tap::node;

/// What a parameter in fused form carries: the way from every read of it to its view. It has no parameters of its own, and
/// the view stays where it is.
#[derive(Module, Debug)]
pub(crate) struct Handle {
    #[module(skip)]
    local_param: Arc<LocalParam>,
    #[module(skip)]
    placeholder: Identity,
    /// Of the placeholder, which is not tracked everywhere.
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

/// The name of what a parameter carries that comes over whenever it is read.
pub(super) const FETCH_HANDLE: &str = "backburn_way";

/// Whether the value of the parameter is at a home.
pub(super) fn is_attached(parameter: &Parameter) -> bool {
    parameter.reparameterization.as_deref() == Some(Handle::NAME)
}

/// The same, or it comes over whenever it is read.
pub(super) fn carries_handle(parameter: &Parameter) -> bool {
    is_attached(parameter) || parameter.reparameterization.as_deref() == Some(FETCH_HANDLE)
}

impl Reparameterization for Handle {
    const NAME: &'static str = "backburn";

    /// Reads the parameter.
    ///
    /// The placeholder tells how: whatever the user's code did to the module (`valid`, `no_grad`) it did to the placeholder.
    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let local_param = &self.local_param;
        if Identity::of(&base) != self.placeholder {
            panic!(
                "parameter `{}` was mapped (`Param::map`), moved or loaded in the closure of a fused step, where the \
                 model has no values of its own: change it between steps with \
                 `FusedOptimizer::change_model`, or compute with another value in the closure \
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
