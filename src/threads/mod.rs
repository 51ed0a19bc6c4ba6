//! Threads of a training: locks with a fixed order, background workers, and the limit of bytes in flight between them.

mod in_flight;
pub(crate) mod lock;
#[cfg(test)]
pub(crate) mod schedule;
mod worker;

pub(crate) use in_flight::InFlightLimit;
pub(crate) use worker::Worker;
