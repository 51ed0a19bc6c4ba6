//! Names of the tensors and scalars in an optimizer state.

use burn::tensor::Shape;

/// The scalar in which Burn stores the rank of the parameter.
pub const RANK: &str = "__rank";

/// Prefix of the entries that stock Burn ignores.
pub const FORMAT: &str = "format";
pub const STATE_BITS: &str = "state_bits";
pub const TIME: &str = "time";
pub const WRAPS: &str = "wraps";
pub const LOW_BITS: &str = "low_bits";
pub const WEIGHT_BITS: &str = "weight_bits";
pub const ELEMENTS: &str = "elements";
/// Prefix of the entries of an optimizer that wraps another.
pub const AROUND: &str = "around";

/// Tensors of Burn's optimizers that have the shape of the parameter.
const OF_ELEMENTS: [&str; 6] = [
    "moment_1",
    "moment_2",
    "max_moment_2",
    "velocity",
    "momentum",
    "square_avg",
];

/// Returns `true` if the tensor has the shape of its parameter.
pub fn is_of_elements(name: &str) -> bool {
    OF_ELEMENTS.contains(&name.rsplit('.').next().unwrap_or_default())
}

/// Returns `true` if the tensor holds quantized values.
pub(super) fn is_compact(name: &str) -> bool {
    name.ends_with(".codes")
}

/// Returns the name without the prefix of a wrapping optimizer.
fn inner(name: &str) -> &str {
    let rest = name.strip_prefix(AROUND);
    rest.and_then(|rest| rest.strip_prefix('.')).unwrap_or(name)
}

/// Returns `true` if stock Burn loses nothing when it ignores this entry.
pub fn stock_can_ignore(name: &str) -> bool {
    let name = inner(name);
    [STATE_BITS, TIME, WRAPS]
        .iter()
        .any(|hint| name == format!("{FORMAT}.{hint}"))
}

/// Returns the expected value of a scalar that depends on the `shape` of the parameter; `None` for other scalars.
pub fn expected(name: &str, shape: &Shape) -> Option<usize> {
    if inner(name) == format!("{FORMAT}.{ELEMENTS}") {
        return Some(shape.num_elements());
    }
    let (_, dim) = name.rsplit_once(".dim_")?;
    shape.get(dim.parse::<usize>().ok()?).copied()
}
