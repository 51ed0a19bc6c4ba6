//! Stand-ins for applied gradients, which a closure that runs the backward pass itself finds in their place.
//!
//! # Invariants
//!
//! Burn collects gradients with a visitor, which looks up the node of each parameter. The handle of a parameter shows the
//! visitor a leaf with the id of the parameter, and the tap registers an [`AppliedGradient`] for that leaf. It takes no
//! memory and can't be read. A step that returns another tensor, or none, has edited the gradient.

use std::any::Any;
use std::fmt::{Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backburn_base::{AnyTensor, lift, with_rank};
use burn::backend::DispatchTensor;
use burn::backend::autodiff::NodeId;
#[cfg(feature = "train")]
use burn::module::{Module, Reparameterization};
use burn::module::{ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::local_param::LocalParam;
use super::placeholder::{Identity, unreadable};
#[cfg(feature = "train")]
use super::read::Handle;
use crate::tap::node;

/// The stand-in for a gradient that the backward pass has applied.
pub(super) struct AppliedGradient {
    /// A `Param<Tensor<D>>` of the rank of the parameter. Its place stays the same, as that of an ordinary parameter.
    leaf: Box<dyn Any + Send + Sync>,
    rank: usize,
    node: NodeId,
    gradient: AnyTensor,
    /// `true` if it is registered in the current pass.
    is_registered: AtomicBool,
}

/// Returns the message for a read of the gradient of the parameter at `path`.
fn read_message(path: &str) -> String {
    format!(
        "the gradient of parameter `{path}` was read after the backward pass, which has applied and released it: change or \
        read gradients in a hook (`FusedLearner::with_hook`, `FusedOptimizer::with_hook`)"
    )
}

impl AppliedGradient {
    fn new<const D: usize>(local_param: &LocalParam) -> Option<Self> {
        let master = &local_param.master;
        let gradient: Tensor<D> = unreadable(
            read_message,
            &master.path,
            &master.shape,
            local_param.dtype,
            &local_param.device,
        );
        let leaf = lift(gradient.clone(), master.strategy).require_grad();
        Some(Self {
            node: node(&leaf)?,
            leaf: Box::new(Param::initialized(master.id, leaf)),
            rank: D,
            gradient: gradient.into(),
            is_registered: AtomicBool::new(false),
        })
    }

    /// Returns the gradient to register, and the node of its leaf.
    pub(super) fn register(&self) -> (NodeId, DispatchTensor) {
        self.is_registered.store(true, Ordering::Relaxed);
        (self.node, self.gradient.clone().0.into_dispatch())
    }

    /// Marks the stand-in as unregistered until the next pass.
    pub(super) fn end_pass(&self) {
        self.is_registered.store(false, Ordering::Relaxed);
    }

    /// Returns `true` if `gradient` is surely another tensor.
    fn is_replaced_by<const D: usize>(&self, gradient: &Tensor<D>) -> bool {
        Identity::of(gradient) != Identity::of(&*self.gradient)
    }

    /// Shows the leaf to `visitor`.
    pub(super) fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        with_rank!(self.rank, D => {
            if let Some(leaf) = self.leaf.downcast_ref::<Param<Tensor<D>>>() {
                visitor.visit_float(leaf);
            }
        });
    }
}

impl Debug for AppliedGradient {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppliedGradient").finish_non_exhaustive()
    }
}

impl LocalParam {
    /// Returns the stand-in for the applied gradient.
    pub(super) fn applied(&self) -> Option<Arc<AppliedGradient>> {
        let new = || with_rank!(self.master.shape.num_dims(), D => AppliedGradient::new::<D>(self).map(Arc::new));
        self.applied.get_or_init(new).clone()
    }

    /// Returns the stand-in if it is registered in the current pass.
    pub(super) fn registered(&self) -> Option<&AppliedGradient> {
        let applied = self.applied.get().and_then(Option::as_deref);
        applied.filter(|applied| applied.is_registered.load(Ordering::Relaxed))
    }

    /// Returns `true` if `gradients` has a gradient of the parameter that the backward pass has not left there.
    pub(super) fn is_edited_in(&self, gradients: &GradientsParams) -> bool {
        with_rank!(self.master.shape.num_dims(), D => {
            let gradient = gradients.get::<D>(self.master.id);
            match (gradient, self.registered()) {
                (Some(gradient), Some(applied)) => applied.is_replaced_by(&gradient),
                (gradient, _) => gradient.is_some(),
            }
        })
    }
}

/// Returns the path of a parameter of an attached module whose applied gradient was removed from `gradients`, or that is
/// frozen and has a gradient there. The backward pass leaves neither.
#[cfg(feature = "train")]
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

#[cfg(feature = "train")]
struct Edits<'a> {
    gradients: &'a GradientsParams,
    names: Vec<String>,
    /// The path of the first parameter whose applied gradient was removed.
    removed: Option<String>,
    /// The paths of untracked parameters with a gradient.
    added: Vec<String>,
}

#[cfg(feature = "train")]
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
