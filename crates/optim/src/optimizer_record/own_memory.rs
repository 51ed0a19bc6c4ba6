use burn::optim::{ModuleOptimizer, OptimizerRecord};

use super::options::compact_records;

/// `optimizer` with the states in `record`, each in memory of its own. What Burn reads from bytes borrows them, and each state holds
/// all bytes of the record as long as it lives, written or not.
pub fn load_in_own_memory(optimizer: &ModuleOptimizer, record: OptimizerRecord) -> ModuleOptimizer {
    let borrowing = optimizer.clone().load_record(record);
    let owned = compact_records(|| borrowing.to_record());
    optimizer.clone().load_record(owned)
}
