//! The float parameters of a module, whatever their ranks: what there is, and other values in their places.

mod around;
mod exchange;
mod load;
mod statistics;

pub(crate) use around::as_inner;
pub use backburn_base::ModelKey;
pub(crate) use backburn_base::{AnyParam, AnyTensor, MAX_RANK, Parameter, list, values, with_rank};
pub(crate) use exchange::{exchange, taken};
pub(crate) use load::load_same;
#[cfg(feature = "store")]
pub(crate) use load::{Loading, TakeOver, empty};
pub(crate) use statistics::{
    Statistics, StatisticsGuard, merge_pending, running_statistics, with_own_statistics,
};
