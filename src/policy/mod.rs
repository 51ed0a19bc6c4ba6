//! What happens to a finished gradient.

mod update;

pub(crate) use update::Update;
