//! Code that several test programs share.

#![allow(dead_code, unused_imports)] // Each program uses a part.

pub mod backends;
pub mod block;
pub mod compare;
pub mod config;
pub mod contents;
pub mod decoder;
pub mod hooks;
pub mod in_time;
pub mod in_types_of;
pub mod intercepted;
pub mod layers;
pub mod learn;
pub mod loops;
pub mod mlp;
pub mod normed;
pub mod noting;
pub mod own_process;
pub mod panics;
pub mod product;
pub mod residual;
pub mod says;

pub(crate) use backends::{on_backend, on_every_backend, on_every_cpu_backend};
pub(crate) use learn::{impl_inference_step, impl_train_step};
pub(crate) use own_process::alone;
pub(crate) use says::assert_matches;
pub use {
    block::*, compare::*, config::*, contents::*, decoder::*, hooks::*, in_time::*, in_types_of::*,
    intercepted::*, layers::*, loops::*, noting::*, own_process::*, panics::*, product::*,
    residual::*, says::*,
};

// The names that most tests use. Optimizers without a path are Burn's.
pub use backburn::optim::{StateFormat, WeightFormat};
pub use backburn::*;
pub use burn::module::{Lora, Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, ParamId};
pub use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, Gelu,
    LayerNorm, LayerNormConfig, Linear, LinearConfig, LinearLayout,
};
pub use burn::optim::momentum::MomentumConfig;
pub use burn::optim::{
    AdamConfig, AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer, Optimizer,
    OptimizerRecord, SgdConfig,
};
pub use burn::tensor::{
    Bool, Bytes, DType, Device, Distribution, FloatDType, Int, Tensor, TensorData,
};
