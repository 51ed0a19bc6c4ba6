use burn::module::Module;

use crate::fused::{Door, FusedOptimizer, FusedReplicas};

/// A training that a [`Checkpoint`](super::Checkpoint) saves and goes on with: a [`FusedOptimizer`] or [`FusedReplicas`].
pub trait Resumable: Door {}

impl<M: Module> Resumable for FusedOptimizer<M> {}

impl<M: Module + 'static> Resumable for FusedReplicas<M> {}
