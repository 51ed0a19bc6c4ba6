//! The float parameters of a module, whatever their ranks: what there is, and other values in their places.

mod any;
mod around;
mod exchange;
mod key;
mod list;
mod load;
mod statistics;

pub(crate) use any::{AnyParam, AnyTensor, MAX_RANK, with_rank};
pub(crate) use around::as_inner;
pub(crate) use exchange::{exchange, taken};
pub use key::ModelKey;
pub(crate) use list::{Parameter, list, values};
pub(crate) use load::load_same;
#[cfg(feature = "store")]
pub(crate) use load::{Loading, TakeOver, empty};
pub(crate) use statistics::{
    Statistics, StatisticsGuard, merge_pending, running_statistics, with_own_statistics,
};
