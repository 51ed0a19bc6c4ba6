//! Gradient release for [Burn](burn): the optimizer step fused into the backward pass.
//!
//! Stock training computes all gradients, keeps them, and then updates all parameters. backburn applies
//! Burn's own optimizer to each parameter as soon as its gradient is complete, inside the backward pass,
//! and releases the gradient. On CPU backends the training result equals stock Burn bit for bit, except for
//! the cases in `docs/limits.md`.
//!
//! ```
//! use backburn::{FusedOptimizer, optim::AdamWConfig};
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Device, Tensor};
//!
//! let device = Device::flex().autodiff();
//! let model: Linear = LinearConfig::new(8, 1).init(&device);
//! let batch = Tensor::<2>::ones([16, 8], &device);
//!
//! let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())?;
//! let loss = fused.step(1e-3, |model| model.forward(batch).mean())?; // forward, backward, update
//! # Ok::<(), backburn::FusedError>(())
//! ```
//!
//! | task | item |
//! |---|---|
//! | write your own training loop | [`FusedOptimizer`], configured by a [`FusedConfig`]; [`Checkpoint`] |
#![cfg_attr(
    feature = "train",
    doc = "| let Burn run the training | [`FusedLearner`](train::FusedLearner) instead of `Learner` |"
)]
#![cfg_attr(
    not(feature = "train"),
    doc = "| let Burn run the training | `FusedLearner` instead of `Learner` (feature `train`) |"
)]
//! | train within a memory budget | [`Planner`] |
//! | estimate memory before training | [`MemoryEstimate`] |
//! | record memory over time | [`memory`] |
//! | recompute activations instead of keeping them | [`gradient_checkpointing()`], [`LinearCrossEntropyLoss`] |
//! | store weights and optimizer states in fewer bits | [`optim`], [`QuantizedLora`] |
//! | store optimizer states and weights in host memory | [`OffloadConfig`] |
//! | train on several devices | [`FusedReplicas`] |
//!
//! The book is in the folder `docs` of the project.
//!
//! # Features
//!
//! - Backend features have Burn's names: `flex` (the default), `ndarray`, `wgpu`, `vulkan`, `metal`, `webgpu`,
//!   `cuda`, `rocm`, `cpu`. Build with the feature of the backend that trains: releasing a gradient is an operation of that backend.
//! - `fusion`, `autotune`, `train` and `tui` are as in Burn. The backends of CubeCL (all but `flex` and `ndarray`) switch on `fusion`.
//! - `plot` draws recorded memory.
//! - `store` loads weights from safetensors and PyTorch files.
//! - `remote` trains on devices of Burn's servers.
//!
//! # Modules
//!
//! For contributors: a module imports only from modules below it. The test `modules` reads this table and checks it.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | chooses the techniques that fit a memory budget; estimates memory before the first step |
//! | `train` | Burn's `Learner` and training loop |
//! | `checkpoint` | saves and loads a training in a folder, atomically |
//! | `linear_cross_entropy` | head and loss of a large vocabulary, as checkpointed blocks |
//! | `fused` | front ends of a custom loop: a model, an optimizer, a step |
//! | `gradient_checkpointing` | recomputes blocks instead of keeping their activations |
//! | `footprint` | bytes that parameters and optimizer states hold between steps, and that an update adds |
//! | `weights` | master and local parameters; attaches to a module, exports an ordinary one |
//! | `config` | options of a training |
//! | `record` | loads an optimizer record, after a check that it fits |
//! | `pass` | shared state of one forward and backward pass; its events, for the memory recorder and observers of the user |
//! | `files` | casts a model, or loads a file in the type of training; names of weights in files of Hugging Face's `transformers` |
//! | `shared_optimizer` | the optimizer that all ranks share, one parameter at a time, and its offloaded states |
//! | `policy` | policies for complete gradients |
//! | `placement` | location and storage type of each parameter, residency of its compute copy |
//! | `random` | repeatable random numbers, and the lock of Burn's generators |
//! | `parameters` | float parameters of a module: mapping, and running statistics |
//! | `quantized` | adapters on frozen quantized weights |
//! | `offload` | transfers states, updates, weights and activations to host memory |
//! | `replica` | owners of parameters, and flow control between several devices |
//! | `device` | checks of devices |
//! | `tap` | autodiff operation that delivers a complete gradient to a sink |
//! | `threads` | locks with a fixed order, background workers, bytes in flight between them |
//! | `error` | errors of a training |
//!
//! These crates are below all modules, and can be used without this one:
//!
//! | crate | contents |
//! |---|---|
//! | `backburn-optim` | [`optim`]: Burn's optimizers in a single pass over memory, formats of weights and states, optimizer records |
//! | `backburn-memory` | [`memory`]: records allocated bytes over time |
//! | `backburn-nn` | operations of transformers with a backward pass of their own, which keep less; not part of this crate |
//! | `backburn-base` | tensors of any shape, transfers between devices, caught panics |

#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// A library may build without any backend. `remote` enables `flex`.
#![cfg_attr(
    not(any(feature = "cubecl", feature = "flex", feature = "ndarray")),
    allow(unused)
)]

mod checkpoint;
mod config;
mod device;
mod error;
mod files;
mod footprint;
mod fused;
mod gradient_checkpointing;
mod linear_cross_entropy;
mod offload;
mod parameters;
mod pass;
mod placement;
mod plan;
mod policy;
mod quantized;
mod random;
mod record;
mod replica;
mod shared_optimizer;
mod tap;
mod threads;
#[cfg(feature = "train")]
pub mod train;
mod weights;

pub use backburn_base::ModelKey;
#[doc(inline)]
pub use backburn_derive::Activations;
#[doc(inline)]
pub use backburn_memory as memory;
#[doc(inline)]
pub use backburn_optim as optim;
pub use backburn_optim::WeightAveragingConfig;
pub use checkpoint::{Checkpoint, CheckpointError, Progress, Resumable};
pub use config::FusedConfig;
pub use device::check_device;
pub use error::FusedError;
pub use files::cast;
#[cfg(feature = "store")]
pub use files::{LoadError, WeightNames, load_from_store, load_quantized_from_store};
pub use fused::{FusedOptimizer, FusedReplicas, Loss, RankBytes, StepReport};
pub use gradient_checkpointing::{
    Activations, Constant, FloatMap, Sequence, Whole, gradient_checkpointing,
    gradient_checkpointing_sequential, gradient_checkpointing_tiled,
};
pub use linear_cross_entropy::{
    Head, LinearCrossEntropyLoss, LinearCrossEntropyLossConfig, LossReduction,
};
pub use offload::{Offload, OffloadConfig, OffloadHost, OffloadedBlocks};
pub use pass::{GradientCheckpointingConfig, StepContext, StepEvent, StepObserver, scale_loss};
pub use plan::{
    Budget, Candidate, MemoryEstimate, Plan, PlanError, PlannedOptimizer, Planner, Technique,
};
pub use policy::{
    AnomalyCheck, GlobalNormClippingConfig, GradientFlow, GradientHook, GradientStatistic,
    GradientStatistics, HookedParameter, LossScalingConfig, Overflow,
};
pub use quantized::{BaseFormat, QuantizedAdapter, QuantizedLora};
pub use replica::{Ownership, Sharding};

/// Compiles and runs the programs of the README and the book as doc tests.
#[cfg(doctest)]
mod book {
    macro_rules! pages {
        ($($page:ident: $path:literal)*) => {
            $(#[doc = include_str!($path)] struct $page;)*
        };
    }

    pages! {
        Readme: "../README.md"
        Start: "../docs/start.md"
        Planning: "../docs/planning.md"
        Fuse: "../docs/fuse.md"
        Checkpoints: "../docs/checkpoints.md"
        Learner: "../docs/learner.md"
        Policies: "../docs/policies.md"
        Clipping: "../docs/clipping.md"
        Blocks: "../docs/blocks.md"
        Formats: "../docs/formats.md"
        Quantized: "../docs/quantized.md"
        Offload: "../docs/offload.md"
        Devices: "../docs/devices.md"
        LanguageModel: "../docs/language-model.md"
        FineTuning: "../docs/fine-tuning.md"
        Optimizers: "../docs/optimizers.md"
        Backends: "../docs/backends.md"
        Memory: "../docs/memory.md"
        Limits: "../docs/limits.md"
        Faq: "../docs/faq.md"
        Architecture: "../docs/architecture.md"
    }
}
