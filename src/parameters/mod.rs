//! The float parameters of a module, with any number of dimensions: mapping, and running statistics.

mod as_inner;
mod map;
mod statistics;

pub(crate) use as_inner::as_inner;
pub(crate) use map::{ValuesInOrder, map_params, take_values};
pub(crate) use statistics::{
    Statistics, StatisticsGuard, frozen_statistics, merge_pending, running_statistics,
    with_own_statistics,
};
