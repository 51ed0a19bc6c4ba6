//! Stand-ins for applied gradients, which a closure that runs the backward pass itself finds in their place.
//!
//! # Invariants
//!
//! Burn collects gradients with a visitor, which looks up the node of each parameter. The handle of a parameter shows the
//! visitor a leaf with the id of the parameter, and the tap registers an [`AppliedGradient`] for that leaf. It takes no
//! memory and can't be read. A step has edited the gradient if the collected gradients have another tensor for the parameter, or none.

use std::any::Any;
use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicBool, Ordering};

use backburn_base::{AnyTensor, lift, with_dims};
use burn::backend::DispatchTensor;
use burn::backend::autodiff::NodeId;
use burn::module::{ModuleVisitor, Param};
use burn::tensor::{DType, Device, Tensor};

use super::master_param::MasterParam;
use super::placeholder::{Identity, unreadable};
use crate::tap::node;

/// The stand-in for a gradient that the backward pass has applied.
pub(super) struct AppliedGradient {
    /// A `Param<Tensor<D>>` with the dimensions of the parameter. Its place stays the same, as that of an ordinary parameter.
    leaf: Box<dyn Any + Send + Sync>,
    dims: usize,
    node: NodeId,
    gradient: AnyTensor,
    identity: Identity,
    /// `true` if it is registered in the current pass.
    is_registered: AtomicBool,
}

/// Returns the message for a read of the gradient of the parameter at `path`.
fn read_message(path: &str) -> String {
    format!(
        "the gradient of parameter `{path}` was read after the backward pass, which uses and releases each as it arrives: \
        change or read gradients in a hook (`FusedLearner::with_hook`, `FusedOptimizer::with_hook`), and save the model before its \
        backward pass or after the step"
    )
}

impl AppliedGradient {
    /// Creates the stand-in for a gradient of this type on `device`.
    pub(super) fn new<const D: usize>(master: &MasterParam, dtype: DType, device: &Device) -> Self {
        let gradient: Tensor<D> =
            unreadable(read_message, &master.path, &master.shape, dtype, device);
        let leaf = lift(gradient.clone(), master.strategy).require_grad();
        Self {
            node: node(&leaf).expect("a leaf is under autodiff"),
            leaf: Box::new(Param::initialized(master.id, leaf)),
            dims: D,
            identity: Identity::of(&gradient),
            gradient: gradient.into(),
            is_registered: AtomicBool::new(false),
        }
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

    /// Returns `true` if it is registered in the current pass.
    pub(super) fn is_registered(&self) -> bool {
        self.is_registered.load(Ordering::Relaxed)
    }

    /// Returns `true` if `gradient` is another tensor.
    pub(super) fn is_replaced_by<const D: usize>(&self, gradient: &Tensor<D>) -> bool {
        Identity::of(gradient) != self.identity
    }

    /// Shows the leaf to `visitor`.
    pub(super) fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        with_dims!(self.dims, D => {
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
