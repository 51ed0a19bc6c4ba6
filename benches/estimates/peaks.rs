//! Estimated peaks, and measured peaks of training.

use backburn::memory::{MemoryRecorder, MemoryTimeline};
use backburn::optim::{self, StateFormat};
use backburn::{FusedConfig, FusedOptimizer, GradientCheckpointingConfig, MemoryEstimate};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdafactorConfig, AdamConfig, AdamWConfig, GradientsParams, LionConfig, ModuleOptimizer,
    SgdConfig,
};
use burn::tensor::{Device, Tensor};

use crate::BYTES;
use crate::models::Kind;

pub type Init = fn() -> ModuleOptimizer;

/// Burn's optimizers and backburn's.
pub const OPTIMIZERS: [(&str, Init); 9] = [
    ("SGD", || SgdConfig::new().init()),
    ("momentum", || {
        let momentum = MomentumConfig::new();
        SgdConfig::new().with_momentum(Some(momentum)).init()
    }),
    ("Lion", || LionConfig::new().init()),
    ("Adam", || AdamConfig::new().init()),
    ("AdamW", || AdamWConfig::new().init()),
    ("Adafactor", || AdafactorConfig::new().init()),
    ("our AdamW", || optim::AdamWConfig::new().init()),
    ("our Lion", || optim::LionConfig::new().init()),
    ("in 8 bits", || {
        let format = StateFormat::Bits8;
        optim::AdamWConfig::new().with_state_format(format).init()
    }),
];

/// Peaks of stock Burn, fused, and fused with recomputed blocks.
pub struct Peaks {
    pub estimated: [usize; 3],
    pub measured: [usize; 3],
}

/// Records a dry run.
pub fn dry_run<K: Kind>() -> MemoryTimeline {
    let model = K::init(&device());
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
    // The first pass starts the threads of the backend.
    fused.dry_run(|model| model.loss(K::BATCH)).unwrap();
    let recorder = MemoryRecorder::start().expect("the allocator records");
    fused.dry_run(|model| model.loss(K::BATCH)).unwrap();
    recorder.finish().expect("a recording")
}

pub fn of<K: Kind>(timeline: &MemoryTimeline, optimizer: Init) -> Peaks {
    let estimate = MemoryEstimate::new(&K::init(&device()), &optimizer());
    let estimated = estimate
        .with_dry_run(timeline)
        .expect("one pass fits in the log");
    Peaks {
        estimated: [estimated.stock, estimated.fused, estimated.recomputed],
        measured: [
            peak(|| stock::<K>(optimizer)),
            peak(|| fused::<K>(optimizer, true)),
            peak(|| fused::<K>(optimizer, false)),
        ],
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn stock<K: Kind>(optimizer: Init) {
    let mut model = K::init(&device());
    let mut optimizer = optimizer();
    for _ in 0..2 {
        let gradients = model.loss(K::BATCH).backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = optimizer.step(1e-3, model, gradients);
    }
}

fn fused<K: Kind>(optimizer: Init, keep: bool) {
    // More blocks than a step has.
    let blocks = GradientCheckpointingConfig::new().with_keep_activations(vec![keep; 1000]);
    let config = FusedConfig::new().with_gradient_checkpointing(blocks);
    let mut fused = FusedOptimizer::new(K::init(&device()), optimizer())
        .unwrap()
        .with_config(config)
        .unwrap();
    for _ in 0..2 {
        fused.step(1e-3, |model| model.loss(K::BATCH)).unwrap();
    }
}

/// Returns the peak of the bytes during `train`, over those before.
fn peak(train: impl FnOnce()) -> usize {
    // The next backward pass frees what the previous training left in autodiff's graph.
    drop(Tensor::<1>::ones([1], &device()).require_grad().backward());
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    train();
    BYTES.peak_usage() - before
}
