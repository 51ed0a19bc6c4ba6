use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::module::{Module, Param, Reparameterization};
use burn::tensor::Tensor;

use super::placeholder::Identity;
use super::view::View;
use crate::parameters::{Parameter, Part, list};
use crate::tap::node;

/// What a parameter in fused form carries: the way from every read of it to its view. It has no parameters of its own, and
/// the view stays where it is.
#[derive(Module, Debug)]
pub(crate) struct Handle {
    #[module(skip)]
    view: Arc<View>,
    #[module(skip)]
    placeholder: Identity,
    /// Of the placeholder, which is not tracked everywhere.
    #[module(skip)]
    node: Option<NodeId>,
}

impl Handle {
    pub(crate) fn new<const D: usize>(view: Arc<View>, placeholder: &Tensor<D>) -> Self {
        Self {
            view,
            placeholder: Identity::of(placeholder),
            node: node(placeholder),
        }
    }
}

/// A part of a parameter. In the second run of a block it has a gradient of its own, of its size: that of the parameter is
/// put together from these.
pub(crate) fn read_part<const D: usize>(param: &Param<Tensor<D>>, part: &Part) -> Tensor<D> {
    match param.reparameterization::<Handle>() {
        Some(handle) => handle.read(param.base(), Some(part)),
        None => part.of(param.val()),
    }
}

/// Whether parts of a parameter can be read without the whole: what an adapter makes of it is whole.
pub(crate) fn has_parts<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    let listed = list(param);
    let mut all = listed.iter();
    all.all(|parameter| parameter.reparameterization.is_none() || is_in_form(parameter))
}

/// The name of what a parameter carries that comes over whenever it is read.
pub(super) const WAY: &str = "backburn_way";

/// Whether the value of the parameter is at a home.
pub(super) fn is_at_home(parameter: &Parameter) -> bool {
    parameter.reparameterization.as_deref() == Some(Handle::NAME)
}

/// The same, or it comes over whenever it is read.
pub(super) fn is_in_form(parameter: &Parameter) -> bool {
    is_at_home(parameter) || parameter.reparameterization.as_deref() == Some(WAY)
}

impl Reparameterization for Handle {
    const NAME: &'static str = "backburn";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        self.read(base, None)
    }
}

impl Handle {
    /// Reads the parameter, or a part of it.
    ///
    /// The placeholder tells how: whatever the user's code did to the module (`valid`, `no_grad`) it did to the placeholder.
    fn read<const D: usize>(&self, base: Tensor<D>, part: Option<&Part>) -> Tensor<D> {
        let view = &self.view;
        if Identity::of(&base) != self.placeholder {
            panic!(
                "parameter `{}` was mapped, moved or loaded in the closure of a fused step, where the \
                 model has no values of its own: change it between steps with \
                 `FusedOptimizer::change_model`, or compute with another value in the closure \
                 (`param.val() + noise`)",
                view.home.path
            );
        }
        let value = if !base.is_autodiff() {
            view.read_untrained(part)
        } else if !base.is_tracked() && node(&base) != self.node {
            view.constant_of(view.read_untrained(part))
        } else {
            view.read(part)
        };
        value.of_rank()
    }
}
