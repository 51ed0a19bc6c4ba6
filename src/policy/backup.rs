use std::collections::HashMap;

use burn::module::{ParamGroup, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord, SgdConfig};
use burn_pack::{Error, Reader, Writer};

/// Of which parameters the optimizer state is kept until their update has succeeded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateBackup {
    /// Bytes of the largest.
    pub(crate) limit: usize,
}

impl Default for StateBackup {
    /// Adam's state of such a parameter takes 128 KiB.
    fn default() -> Self {
        Self { limit: 64 * 1024 }
    }
}

/// A second handle to the optimizer state of every parameter, by parameter: an optimizer that panics takes
/// the state that it was given along.
#[derive(Default)]
pub(super) struct Backups(HashMap<ParamId, ModuleOptimizer>);

impl Backups {
    /// Of the states that `optimizer` has for `parameters`.
    pub(super) fn of(optimizer: &ModuleOptimizer, parameters: &[ParamId]) -> Self {
        let mut backups = Self::default();
        if !parameters.is_empty() {
            backups.split(only(optimizer.clone(), parameters), parameters);
        }
        backups
    }

    /// Burn's optimizer does not give single states away, but drops those of a group that another
    /// optimizer is added for. So it is cut in half, again and again.
    fn split(&mut self, optimizer: ModuleOptimizer, parameters: &[ParamId]) {
        if let [parameter] = parameters {
            self.0.insert(*parameter, optimizer);
            return;
        }
        let (left, right) = parameters.split_at(parameters.len() / 2);
        self.split(only(optimizer.clone(), left), left);
        self.split(only(optimizer, right), right);
    }

    /// Takes the backup of a parameter: while it is there, the state is copied to be updated.
    pub(super) fn take(&mut self, parameter: ParamId) -> Option<ModuleOptimizer> {
        self.0.remove(&parameter)
    }
}

fn only(optimizer: ModuleOptimizer, parameters: &[ParamId]) -> ModuleOptimizer {
    let parameters = ParamGroup::from_ids(parameters.to_vec());
    let others = ParamGroup::all().exclude(parameters);
    optimizer.with_group(others, SgdConfig::new().build(), None)
}

/// `optimizer` with the states that `backup` has, too. Only a record can bring them together.
pub(super) fn restored(
    optimizer: &ModuleOptimizer,
    backup: &ModuleOptimizer,
) -> Result<ModuleOptimizer, String> {
    let record = joined([optimizer.to_record(), backup.to_record()]);
    let record = record.map_err(|error| error.to_string())?;
    Ok(optimizer.clone().load_record(record))
}

/// The states of both records.
fn joined(records: [OptimizerRecord; 2]) -> Result<OptimizerRecord, Box<dyn std::error::Error>> {
    let mut tensors = Vec::new();
    let mut scalars = Vec::new();
    let mut paths = Vec::new();
    for record in records {
        let reader = Reader::from_bytes(record.into_bytes()?)?;
        scalars.extend(reader.scalars().clone());
        paths.extend(reader.metadata().clone());
        tensors.extend(reader.into_tensors()?);
    }
    let writer = Writer::new(tensors);
    let writer = scalars.iter().fold(writer, |writer, (name, scalar)| {
        writer.with_scalar(name, *scalar)
    });
    let writer = paths.iter().fold(writer, |writer, (name, path)| {
        writer.with_metadata(name, path)
    });
    let bytes = writer
        .into_bytes()
        .map_err(|error: Error| error.to_string())?;
    Ok(OptimizerRecord::from_bytes(bytes)?)
}
