use burn::optim::{ModuleOptimizer, OptimizerRecord};

use super::options::compact_records;

/// Loads `record` into `optimizer`, with each state in its own memory. Burn loads states as views of the record's bytes, so
/// that each state would keep the whole record alive.
pub fn load_in_own_memory(optimizer: &ModuleOptimizer, record: OptimizerRecord) -> ModuleOptimizer {
    let borrowing = optimizer.clone().load_record(record);
    let owned = compact_records(|| borrowing.to_record());
    optimizer.clone().load_record(owned)
}
