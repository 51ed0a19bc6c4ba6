//! Records of optimizer states, as Burn's `ModuleOptimizer` writes them: the one place that takes them apart and puts
//! them together.
//!
//! A record shows what it holds in its serialized form only, a pack of tensors and scalars. Each has the name
//! `{parameter id}.{name in the state}`; beside them there are the paths of the parameters.

mod names;
mod options;
mod own_memory;
mod state;

pub use names::{
    AROUND, ELEMENTS, FORMAT, LOW_BITS, RANK, STATE_BITS, TIME, WEIGHT_BITS, WRAPS, expected,
    is_of_elements, stock_can_ignore,
};
pub use options::{compact_records, load_device, load_on, records_are_compact};
pub use own_memory::load_in_own_memory;
pub use state::{RecordedState, read, to_bytes, unreadable, write};
