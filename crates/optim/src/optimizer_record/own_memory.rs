use std::cell::Cell;
use std::path::Path;

use backburn_base::caught::catch_message;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, TensorData};

use super::options::compact_records;
use super::state::{to_bytes, unreadable};
use crate::error::OptimError;

thread_local! {
    /// Number of tensors that [`in_own_memory`] has returned.
    static IN_OWN_MEMORY: Cell<usize> = const { Cell::new(0) };
}

/// Loads `record` into `optimizer`, with each state in its own memory. Burn loads states as views of the record's bytes, so
/// that each state would keep the whole record alive.
pub fn load_in_own_memory(optimizer: &ModuleOptimizer, record: OptimizerRecord) -> ModuleOptimizer {
    let borrowing = optimizer.clone().load_record(record);
    let owned = compact_records(|| borrowing.to_record());
    optimizer.clone().load_record(owned)
}

/// Loads the record in `file`, which has this number of `tensors`, into `optimizer`, with each state in its own memory.
///
/// Burn reads tensors of a file lazily. The states of this crate read theirs when they are loaded, so that the file may be removed
/// and no tensor is in memory twice. Other states are loaded as by [`load_in_own_memory`], which holds the record in addition.
///
/// # Errors
///
/// If the file can't be read.
pub fn load_file_in_own_memory(
    optimizer: &ModuleOptimizer,
    file: &Path,
    tensors: usize,
) -> Result<ModuleOptimizer, OptimError> {
    let open = || OptimizerRecord::load(file).map_err(unreadable);
    let before = IN_OWN_MEMORY.replace(0);
    // Burn panics at a tensor that the file has lost.
    let loaded = catch_message(|| open().map(|record| optimizer.clone().load_record(record)));
    let read = IN_OWN_MEMORY.replace(before);
    let loaded = loaded.map_err(unreadable)??;
    if read == tensors {
        return Ok(loaded);
    }
    drop(loaded);
    let record = OptimizerRecord::from_bytes(to_bytes(open()?)?).map_err(unreadable)?;
    Ok(load_in_own_memory(optimizer, record))
}

/// Reads `data` into memory, if it is in a file.
pub(crate) fn in_own_memory(data: TensorData) -> TensorData {
    IN_OWN_MEMORY.set(IN_OWN_MEMORY.get() + 1);
    if data.num_elements() == 0 {
        // Burn's empty buffer of a file is not aligned.
        let empty = Bytes::from_elems(Vec::<u64>::new());
        return TensorData::from_bytes(empty, data.shape().clone(), data.dtype());
    }
    data.as_bytes();
    data
}
