//! Reader and writer for the records of Burn's `ModuleOptimizer`.
//!
//! Burn exposes the contents of a record only in serialized form: a pack of tensors and scalars with names of the form
//! `{parameter id}.{name in the state}`, and the paths of the parameters as metadata.

mod by_tensor;
mod names;
mod options;
mod own_memory;
mod state;

pub(crate) use by_tensor::push_tensor;
pub use by_tensor::save_by_tensor;
pub(crate) use names::{AROUND, ELEMENTS, FORMAT, LOW_BITS, STATE_BITS, TIME, WEIGHT_BITS, WRAPS};
pub use names::{RANK, expected, is_of_elements, stock_can_ignore};
pub(crate) use options::load_device;
pub use options::{compact_records, load_on, records_are_compact};
pub(crate) use own_memory::in_own_memory;
pub use own_memory::{load_file_in_own_memory, load_in_own_memory};
pub use state::{RecordedState, read, read_pack, to_bytes, unreadable, write};
