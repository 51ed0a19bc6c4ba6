//! Checks an optimizer record against the model it is loaded for.

use burn::module::ParamId;
use burn::optim::OptimizerRecord;
use burn_pack::Reader;

use crate::error::FusedError;
use crate::policy::KEEPER_ID;
use crate::slot::Inventory;

/// The scalar under which Burn's `ModuleOptimizer::to_record` stores the rank of a parameter.
const RANK_SUFFIX: &str = ".__rank";

/// Returns `record` if every state in it belongs to a parameter in `inventory`.
pub(crate) fn checked(
    record: OptimizerRecord,
    inventory: &Inventory,
) -> Result<OptimizerRecord, FusedError> {
    let unreadable = |reason: String| FusedError::UnreadableRecord { reason };

    // A record shows what it holds in its serialized form only.
    let bytes = record.into_bytes().map_err(|e| unreadable(e.to_string()))?;
    let reader = Reader::from_bytes(bytes.clone()).map_err(|e| unreadable(e.to_string()))?;

    for (name, rank) in reader.scalars() {
        let Some(id) = name.strip_suffix(RANK_SUFFIX) else {
            continue;
        };
        let path = reader.metadata().get(id).cloned().unwrap_or_default();
        let id = id.parse::<u64>().map(ParamId::from);
        let id = id.map_err(|_| unreadable(format!("`{name}` names no parameter id")))?;
        if id.val() == KEEPER_ID {
            continue;
        }
        let rank =
            usize::try_from(*rank).map_err(|_| unreadable(format!("`{name}` holds no rank")))?;

        match inventory.get(id) {
            None => return Err(FusedError::ForeignRecord { id, path }),
            Some(entry) if entry.rank != rank => {
                return Err(FusedError::RecordRank {
                    path: entry.path.clone(),
                    expected: entry.rank,
                    found: rank,
                });
            }
            Some(_) => {}
        }
    }
    OptimizerRecord::from_bytes(bytes).map_err(|e| unreadable(e.to_string()))
}
