//! The names in a state.

use burn::tensor::Shape;

/// The scalar in which Burn keeps the rank of the parameter.
pub const RANK: &str = "__rank";

/// What stock Burn does not know, under this name in a state.
pub const FORMAT: &str = "format";
pub const STATE_BITS: &str = "state_bits";
pub const TIME: &str = "time";
pub const WRAPS: &str = "wraps";
pub const LOW_BITS: &str = "low_bits";
pub const WEIGHT_BITS: &str = "weight_bits";
pub const ELEMENTS: &str = "elements";
/// What an optimizer around another keeps is under this name.
pub const AROUND: &str = "around";

/// What Burn's optimizers keep for every element of a parameter, under these names.
const OF_ELEMENTS: [&str; 6] = [
    "moment_1",
    "moment_2",
    "max_moment_2",
    "velocity",
    "momentum",
    "square_avg",
];

/// Whether the tensor of this name is of the shape of its parameter.
pub fn is_of_elements(name: &str) -> bool {
    OF_ELEMENTS.contains(&name.rsplit('.').next().unwrap_or_default())
}

/// Whether this is the name of something in codes.
pub(super) fn is_compact(name: &str) -> bool {
    name.ends_with(".codes")
}

/// A name in a state without the mark of an optimizer around another.
fn inner(name: &str) -> &str {
    let rest = name.strip_prefix(AROUND);
    rest.and_then(|rest| rest.strip_prefix('.')).unwrap_or(name)
}

/// Whether stock Burn does without what has this name in a state, and loses nothing.
pub fn stock_can_ignore(name: &str) -> bool {
    let name = inner(name);
    [STATE_BITS, TIME, WRAPS]
        .iter()
        .any(|hint| name == format!("{FORMAT}.{hint}"))
}

/// What the scalar of this name in a state must be for a parameter of `shape`, if it tells about that.
pub fn expected(name: &str, shape: &Shape) -> Option<usize> {
    if inner(name) == format!("{FORMAT}.{ELEMENTS}") {
        return Some(shape.num_elements());
    }
    let (_, dim) = name.rsplit_once(".dim_")?;
    shape.get(dim.parse::<usize>().ok()?).copied()
}
