//! The files of a checkpoint, by name.

pub(super) const MODEL: &str = "model.bpk";
pub(super) const OPTIMIZER: &str = "optimizer.bpk";
pub(super) const SCHEDULER: &str = "scheduler.bpk";
pub(super) const PROGRESS: &str = "progress.cbor";

pub(super) const ALL: [&str; 4] = [MODEL, OPTIMIZER, SCHEDULER, PROGRESS];
