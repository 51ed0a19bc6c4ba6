#![doc = include_str!("../README.md")]
//!
//! # One pass
//!
//! An optimizer step in tensor operations reads and writes the bytes of the parameter about twelve times. The
//! optimizers of this crate read gradient, parameter and states once, and write parameter and states once. They work in
//! place where the buffers have one owner, and allocate no temporary of the parameter's size.
//!
//! A config's `init()` returns a [`ModuleOptimizer`] for stock and fused training, `build()` the bare
//! optimizer for a parameter group. A config of Burn that was saved as JSON loads as one of this crate.
//!
//! # Fidelity
//!
//! Every element is computed with Burn's operations in Burn's order. On `flex`, f32 and f64 results
//! equal those of Burn's optimizers bit for bit, except `Muon` on a matrix of 4,194,304 elements or more
//! in f32: the norm of Burn depends on its threads there. Half types are computed in f32 and rounded once,
//! while Burn rounds after each operation: the tests allow a difference of 2 %. (The iteration of `Muon` in
//! bf16 without formats runs Burn's operations in bf16.) CubeCL's devices may
//! contract a multiplication and an addition: the tests allow 0.1 %. On any other backend a step runs
//! Burn's operations on whole tensors, in Burn's order.
//!
//! # An optimizer of your own
//!
//! Implement the formula for one element, and declare its states:
//!
//! ```
//! use backburn_optim::{ElementState, ElementWise, Number, Rule, ElementWiseOptimizer, StateFormat, Step, UpdateRule};
//!
//! /// RMSProp.
//! #[derive(Clone, Debug)]
//! struct RmsProp {
//!     alpha: f64,
//! }
//!
//! #[derive(Clone, Debug)]
//! struct Formula {
//!     alpha: f64,
//!     learning_rate: f64,
//! }
//!
//! impl UpdateRule<1> for Formula {
//!     #[inline(always)]
//!     fn update<N: Number>(&self, parameter: N, gradient: N, [square]: [N; 1]) -> (N, [N; 1]) {
//!         let new = gradient * gradient * N::of(1.0 - self.alpha);
//!         let square = square * N::of(self.alpha) + new;
//!         let delta = gradient / (square.sqrt() + N::of(1e-5));
//!         (parameter - delta * N::of(self.learning_rate), [square])
//!     }
//! }
//!
//! impl ElementWise for RmsProp {
//!     const STATES: &'static [ElementState] = &[ElementState::positive("square_avg")];
//!
//!     fn rule(&self, step: Step) -> Rule {
//!         Rule::new(Formula {
//!             alpha: self.alpha,
//!             learning_rate: step.learning_rate,
//!         })
//!     }
//! }
//!
//! let optimizer = ElementWiseOptimizer::new(RmsProp { alpha: 0.99 }).with_state_format(StateFormat::Bits8);
//! ```

#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod adam;
mod adamw;
mod average;
mod averaging;
#[doc(hidden)]
pub mod call;
mod element_wise;
mod element_wise_optimizer;
mod error;
mod format;
mod in_format;
mod kernel;
mod lion;
mod moments;
mod muon;
mod muon_with_adamw;
#[doc(hidden)]
pub mod optimizer_record;
mod rule;
mod sgd;
mod state;
#[cfg(all(test, feature = "flex"))]
mod stock;

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{ModuleOptimizer, Optimizer};

pub use adam::{Adam, AdamConfig};
pub use adamw::{AdamW, AdamWConfig};
#[doc(hidden)]
pub use average::{Average, AverageState};
pub use averaging::WeightAveragingConfig;
pub use element_wise::{AccumulateInState, ElementState, ElementWise};
pub use element_wise_optimizer::ElementWiseOptimizer;
pub use error::OptimError;
#[doc(hidden)]
pub use format::{Residual, formats_may_refuse, recorded_residual};
pub use format::{StateFormat, WeightFormat};
pub use in_format::{InFormat, InFormatState};
pub use lion::{Lion, LionConfig};
pub use muon::{Muon, MuonConfig, MuonState};
pub use muon_with_adamw::{MuonWithAdamW, MuonWithAdamWConfig, MuonWithAdamWState};
pub use optimizer_record::compact_records;
pub use rule::{Number, Rule, Step, UpdateRule};
pub use sgd::{Sgd, SgdConfig};
pub use state::ElementWiseState;

/// Returns `optimizer` for a whole module, with the gradient clipping of its config.
fn with_clipping(
    optimizer: impl Optimizer,
    clipping: Option<&GradientClippingConfig>,
) -> ModuleOptimizer {
    let optimizer = ModuleOptimizer::from(optimizer);
    match clipping {
        Some(clipping) => optimizer.with_grad_clipping(clipping.init()),
        None => optimizer,
    }
}
