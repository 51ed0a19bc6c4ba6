//! Gradients that a training step has edited after its backward pass.

use burn::module::{Module, ModuleVisitor, Param, Reparameterization};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::handle::Handle;

/// Returns the path of a parameter of an attached module whose applied gradient was removed from `gradients`, or that is
/// frozen and has a gradient there. The backward pass leaves neither.
pub(crate) fn removed_or_added_in<M: Module>(
    gradients: &GradientsParams,
    module: &M,
) -> Option<String> {
    let mut edits = Edits {
        gradients,
        names: Vec::new(),
        removed: None,
        added: Vec::new(),
    };
    module.visit(&mut edits);
    edits.removed.or(edits.added.into_iter().next())
}

struct Edits<'a> {
    gradients: &'a GradientsParams,
    names: Vec<String>,
    /// The path of the first parameter whose applied gradient was removed.
    removed: Option<String>,
    /// The paths of untracked parameters with a gradient.
    added: Vec<String>,
}

impl ModuleVisitor for Edits<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        // Burn visits a placeholder, which is untracked, before its handle.
        if name == Handle::NAME {
            let placeholder = self.names.join(".");
            self.added.pop_if(|path| *path == placeholder);
        }
        self.names.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.names.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some((last, parameter)) = self.names.split_last() else {
            return;
        };
        let has_gradient = self.gradients.get::<D>(param.id).is_some();
        if last == Handle::NAME {
            if !has_gradient && self.removed.is_none() {
                self.removed = Some(parameter.join("."));
            }
        } else if has_gradient && !param.is_require_grad() {
            self.added.push(self.names.join("."));
        }
    }
}
