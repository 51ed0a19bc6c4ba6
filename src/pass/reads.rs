//! The reads of parameters in a pass, and the gradients that they leave pending.

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::ParamId;
use parking_lot::Mutex;

use crate::tap::Position;

/// The pending gradients of a parameter: each tap and each block before its recomputation holds a clone. A strong count of one means
/// that none is pending.
pub(crate) type PendingCount = Arc<()>;

/// The identity of an autodiff graph. Graphs share no node: each is locked while its backward steps run, and a recomputation happens
/// in one of these steps.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// The position of the last tap on the clock.
    pub(crate) position: Mutex<Position>,
}

/// The parameters that a block has read without recording, with a pending gradient for each until the block is
/// recomputed.
#[derive(Debug, Default)]
pub(crate) struct BlockReads {
    pub(crate) reads: Reads,
    pending: Mutex<Vec<PendingCount>>,
}

impl BlockReads {
    /// Adds a parameter, unless it was added before.
    pub(crate) fn add(&self, id: ParamId, path: &Arc<str>, pending_count: &PendingCount) {
        if self.reads.add(id, path) {
            self.pending.lock().push(pending_count.clone());
        }
    }

    /// Resolves the pending gradients of the block after its recomputation, which leaves those of its taps.
    pub(crate) fn resolve(&self) {
        self.pending.lock().clear();
    }
}

/// The parameters that a run of a block reads, in the order of their first reads.
#[derive(Debug, Default)]
pub(crate) struct Reads(Mutex<ReadList>);

#[derive(Debug, Default)]
struct ReadList {
    ids: HashSet<ParamId>,
    in_order: Vec<(ParamId, Arc<str>)>,
}

impl Reads {
    /// Adds a parameter. Returns `false` if it was added before.
    pub(crate) fn add(&self, id: ParamId, path: &Arc<str>) -> bool {
        let mut found = self.0.lock();
        let is_new = found.ids.insert(id);
        if is_new {
            found.in_order.push((id, path.clone()));
        }
        is_new
    }

    pub(super) fn ids(&self) -> Vec<ParamId> {
        let found = self.0.lock();
        found.in_order.iter().map(|(id, _)| *id).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().in_order.is_empty()
    }

    /// Returns the path of the first parameter that is not in `other`.
    pub(crate) fn first_beyond(&self, other: &Self) -> Option<Arc<str>> {
        let (found, other) = (self.0.lock(), other.0.lock());
        let mut reads = found.in_order.iter();
        let beyond = reads.find(|(id, _)| !other.ids.contains(id));
        beyond.map(|(_, path)| path.clone())
    }

    /// Returns the path of the innermost module that contains all of the parameters.
    pub(crate) fn common_module(&self) -> String {
        let found = self.0.lock();
        let mut paths = found.in_order.iter().map(|(_, path)| path.to_string());
        let module = paths.next().unwrap_or_default();
        paths.fold(module, |module, path| common(&module, &path))
    }
}

/// Returns the common prefix of both paths.
fn common(a: &str, b: &str) -> String {
    let pairs = a.split('.').zip(b.split('.'));
    let names: Vec<&str> = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    names.join(".")
}
