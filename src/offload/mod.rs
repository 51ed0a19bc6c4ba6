//! What of a training waits in host memory, and where the model computes.

mod config;
mod placement;
mod room;
mod saved;
mod transfers;

pub use config::{Offload, OffloadConfig, OffloadHost, WaitingBlocks};
pub(crate) use placement::Placement;
pub(crate) use room::check_room_to_wait;
pub(crate) use saved::{Saved, SavedTensors};
pub(crate) use transfers::Transfers;
