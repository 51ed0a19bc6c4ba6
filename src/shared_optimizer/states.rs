//! Splits and joins the states in optimizer records, in Burn's format.

use std::collections::HashMap;

use backburn_optim::optimizer_record::{self as record, RecordedState};
use burn::module::ParamId;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::Bytes;

use super::extra_state_ids::{EXTRA_STATE_ID, is_average};

/// Returns a record with the states of all records.
pub(super) fn joined(records: impl IntoIterator<Item = Bytes>) -> OptimizerRecord {
    let mut records = records.into_iter();
    let record = match (records.next(), records.next()) {
        (None, _) => return OptimizerRecord::default(),
        // A copy owns its memory, so its tensors need not be copied when they are written.
        (Some(record), None) => Bytes::from_bytes_vec(record.to_vec()),
        (first, second) => {
            let all = first.into_iter().chain(second).chain(records);
            write(all.flat_map(read))
        }
    };
    OptimizerRecord::from_bytes(record).expect("Burn reads what it has written")
}

/// Returns `optimizer` with only the states of these records.
pub(super) fn with_states(
    optimizer: &ModuleOptimizer,
    records: impl IntoIterator<Item = Bytes>,
) -> ModuleOptimizer {
    optimizer.clone().load_record(joined(records))
}

/// Returns a record of each parameter's state in `record`, and one of all other states.
pub(super) fn split(record: OptimizerRecord) -> (HashMap<ParamId, Bytes>, Bytes) {
    let states = record::read(written(record)).expect("Burn reads its own record");
    let is_others =
        |id: u64, state: &RecordedState| id == EXTRA_STATE_ID || is_average(state.path.as_deref());
    let (others, states): (Vec<_>, Vec<_>) = states
        .into_iter()
        .partition(|(id, state)| is_others(*id, state));
    let states = states.into_iter();
    let states = states.map(|(id, state)| (ParamId::from(id), write([state]).shared()));
    (
        states.collect(),
        write(others.into_iter().map(|(_, state)| state)),
    )
}

/// Returns `true` if the record contains quantized states.
pub(super) fn holds_codes(record: &Bytes) -> bool {
    read(record.clone()).any(|state| state.is_compact())
}

/// Returns a record as bytes.
pub(super) fn written(record: OptimizerRecord) -> Bytes {
    record::to_bytes(record).expect("Burn writes its own record")
}

fn read(record: Bytes) -> impl Iterator<Item = RecordedState> {
    let states = record::read(record);
    states.expect("Burn reads its own record").into_values()
}

fn write(states: impl IntoIterator<Item = RecordedState>) -> Bytes {
    record::write(states).expect("Burn writes what it has read")
}
