//! The states in optimizer records: apart, and together. Burn shows what it writes itself, and reads it again.

use std::collections::{BTreeMap, HashMap};

use burn::module::ParamId;
use burn::optim::OptimizerRecord;
use burn::tensor::Bytes;
use burn_pack::{Reader, Scalar, Tensor, Writer};

use crate::optim::is_compact;

/// What is in records.
#[derive(Default)]
struct Contents {
    tensors: Vec<Tensor>,
    scalars: BTreeMap<String, Scalar>,
    /// Of the parameters, by id.
    paths: BTreeMap<String, String>,
}

impl Contents {
    fn add(&mut self, record: Bytes) {
        let reader = Reader::from_bytes(record).expect("Burn reads its own record");
        self.scalars.extend(reader.scalars().clone());
        self.paths.extend(reader.metadata().clone());
        let tensors = reader.into_tensors();
        self.tensors
            .extend(tensors.expect("Burn reads its own record"));
    }

    fn write(self) -> Bytes {
        let mut writer = Writer::new(self.tensors);
        for (name, scalar) in &self.scalars {
            writer = writer.with_scalar(name, *scalar);
        }
        for (name, path) in &self.paths {
            writer = writer.with_metadata(name, path);
        }
        writer.into_bytes().expect("Burn writes what it has read")
    }
}

/// The states of all records.
pub(super) fn joined(records: impl IntoIterator<Item = Bytes>) -> OptimizerRecord {
    let mut all = Contents::default();
    records.into_iter().for_each(|record| all.add(record));
    OptimizerRecord::from_bytes(all.write()).expect("Burn reads what it has written")
}

/// A record of each state in `record`.
pub(super) fn split(record: OptimizerRecord) -> HashMap<ParamId, Bytes> {
    let mut all = Contents::default();
    all.add(written(record));
    let mut states = BTreeMap::<u64, Contents>::new();
    for (name, scalar) in all.scalars {
        let id = name.split('.').next().and_then(|id| id.parse().ok());
        let id = id.expect("a scalar is named after its parameter");
        states.entry(id).or_default().scalars.insert(name, scalar);
    }
    for tensor in all.tensors {
        let id = tensor.param_id.expect("a state has a parameter");
        states.entry(id).or_default().tensors.push(tensor);
    }
    for (id, state) in &mut states {
        let id = id.to_string();
        state.paths.extend(all.paths.remove_entry(&id));
    }
    let states = states.into_iter();
    let states = states.map(|(id, state)| (ParamId::from(id), state.write().shared()));
    states.collect()
}

/// Whether there are states in codes in a record.
pub(super) fn holds_codes(record: &Bytes) -> bool {
    let mut all = Contents::default();
    all.add(record.clone());
    all.tensors.iter().any(|tensor| is_compact(&tensor.name))
}

/// A record as bytes.
pub(super) fn written(record: OptimizerRecord) -> Bytes {
    record.into_bytes().expect("Burn writes its own record")
}
