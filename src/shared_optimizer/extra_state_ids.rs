//! The ids and paths of extra state in an optimizer record.

use burn::module::ParamId;

/// The parameter id under which an optimizer record holds the policy state. (The name dates from the loss scale.)
pub(crate) const EXTRA_STATE_ID: u64 = u64::from_be_bytes(*b"lossscal");

/// The path under which an optimizer record holds averages.
pub(super) const AVERAGE_PATH: &str = "backburn.average";

/// Returns the id under which the optimizer holds the average of a parameter. The chance that another parameter has it
/// is 2^-64 times the number of parameters.
pub(crate) fn average_id(parameter: ParamId) -> ParamId {
    ParamId::from(parameter.val() ^ u64::from_be_bytes(*b"averaged"))
}

/// Returns `true` if a record holds an average under this path.
pub(crate) fn is_average(path: Option<&str>) -> bool {
    path == Some(AVERAGE_PATH)
}
