//! The peaks that are estimated before the first step are those of training.
//!
//! A process of its own: it installs the recording allocator.

mod common;
#[allow(dead_code)] // A part of an example.
#[path = "../examples/text/model/mod.rs"]
mod model;

use std::sync::Mutex;

use backburn::memory::{MemoryRecorder, RecordingAllocator};
use peak_alloc::PeakAlloc;

use model::{LanguageModel, LanguageModelConfig, Preset};

use crate::common::*;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

/// One test at a time: they share the counters.
static ALONE: Mutex<()> = Mutex::new(());

const BATCH: usize = 2;

fn text(config: &LanguageModelConfig) -> Tensor<2, Int> {
    let last = config.vocabulary as f64;
    let shape = [BATCH, config.context + 1];
    let device = Device::flex().autodiff();
    Tensor::<2>::random(shape, Distribution::Uniform(0.0, last), &device).int()
}

fn loss(model: &LanguageModel, text: &Tensor<2, Int>) -> Tensor<1> {
    model.losses(text.clone()).total
}

/// The most bytes during `train`, over those before.
fn peak(train: impl FnOnce()) -> usize {
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    train();
    BYTES.peak_usage() - before
}

fn estimate(config: &LanguageModelConfig, text: &Tensor<2, Int>) -> MemoryEstimate {
    let model = config.init(&Device::flex().autodiff());
    let optimizer = AdamWConfig::new().init();
    let estimate = MemoryEstimate::new(&model, &optimizer);
    let mut fused = FusedOptimizer::new_ok(model, optimizer);
    // The first pass starts the threads of the backend.
    fused.dry_run_ok(|model| loss(model, text));
    let recorder = MemoryRecorder::start().unwrap();
    fused.dry_run_ok(|model| loss(model, text));
    estimate.with_dry_run(&recorder.finish().unwrap()).unwrap()
}

fn fused(config: &LanguageModelConfig, text: &Tensor<2, Int>) -> usize {
    peak(|| {
        let model = config.init(&Device::flex().autodiff());
        let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
        (0..2).for_each(|_| drop(fused.step_ok(1e-3, |model| loss(model, text))));
    })
}

fn stock(config: &LanguageModelConfig, text: &Tensor<2, Int>) -> usize {
    peak(|| {
        let mut model = config.init(&Device::flex().autodiff());
        let mut optimizer = AdamWConfig::new().init();
        for _ in 0..2 {
            let gradients = loss(&model, text).backward();
            let gradients = GradientsParams::from_grads(gradients, &model);
            model = optimizer.step(1e-3, model, gradients);
        }
    })
}

#[test]
fn peaks_of_the_presets_are_estimated_within_five_percent() {
    let _alone = ALONE.lock();
    for (preset, vocabulary) in [
        (Preset::Small, 256),
        (Preset::Small, 8192),
        (Preset::Medium, 256),
    ] {
        let plain = preset.config(vocabulary);
        let blocks = plain.clone().with_recompute_layers(true);
        let loss = LinearCrossEntropyLossConfig::new().with_chunk_size(64);
        let chunked = blocks.clone().with_loss(Some(loss));
        let text = text(&plain);
        let [of_blocks, of_chunked] = [&blocks, &chunked].map(|config| estimate(config, &text));
        for (name, estimated, measured) in [
            ("stock", of_blocks.stock, stock(&plain, &text)),
            ("fused", of_blocks.fused, fused(&plain, &text)),
            ("blocks", of_blocks.recomputed, fused(&blocks, &text)),
            ("chunked", of_chunked.recomputed, fused(&chunked, &text)),
        ] {
            let ratio = estimated as f64 / measured as f64;
            println!("{preset:?} {vocabulary} {name}: {estimated} of {measured}, {ratio:.3}");
            assert!(
                (0.95..=1.05).contains(&ratio),
                "{preset:?} {vocabulary} {name}: {estimated} estimated, {measured} measured"
            );
        }
    }
}

#[test]
fn a_recording_without_its_end_is_refused() {
    let _alone = ALONE.lock();
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(4, 4).init(&device);
    let optimizer = AdamWConfig::new().init();
    let estimate = MemoryEstimate::new(&model, &optimizer);
    let mut fused = FusedOptimizer::new_ok(model, optimizer);
    let recorder = MemoryRecorder::start().unwrap();
    fused.dry_run_ok(|model| model.forward(Tensor::<2>::ones([2, 4], &device)).mean());
    let mut timeline = recorder.finish().unwrap();
    assert!(estimate.with_dry_run(&timeline).is_ok());
    timeline.lost = 7;
    let error = estimate.with_dry_run(&timeline).unwrap_err().to_string();
    assert_says(&error, "7 events");
}

#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

#[test]
fn a_dry_run_changes_nothing() {
    let _alone = ALONE.lock();
    let device = Device::flex().autodiff();
    let model = Normed {
        linear: LinearConfig::new(4, 4).init(&device),
        norm: BatchNormConfig::new(4).init(&device),
    };
    let x = Tensor::<2>::random([6, 4], Distribution::Default, &device);
    let loss = |model: &Normed| {
        let x = model.norm.forward(model.linear.forward(x.clone()));
        x.powi_scalar(3).mean()
    };
    let bytes = |fused: &FusedOptimizer<Normed>| {
        // Burn merges the statistics of the last pass when a model is taken for validation, and not for a record.
        let model = fused.valid().into_record().into_bytes().unwrap().to_vec();
        (model, fused.to_record().into_bytes().unwrap().to_vec())
    };
    let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
    fused.step_ok(1e-2, loss);
    fused.accumulate_ok(loss);
    let before = bytes(&fused);
    fused.dry_run_ok(loss);
    assert!(bytes(&fused) == before);
    assert!(fused.dry_run(|_| x.clone().mean()).is_err());
    fused.step_accumulated_ok(1e-2);
}

#[test]
fn a_dry_run_leaves_a_group_that_has_begun() {
    let _alone = ALONE.lock();
    let device = Device::flex().autodiff();
    let model: Vec<Linear> = (0..2)
        .map(|_| LinearConfig::new(4, 4).init(&device))
        .collect();
    let x = Tensor::<2>::ones([3, 4], &device);
    let both = |model: &Vec<Linear>| model[1].forward(model[0].forward(x.clone())).mean();
    let first = |model: &Vec<Linear>| model[0].forward(x.clone()).mean();
    let optimizer = optim::AdamWConfig::new().build();
    let mut fused = FusedOptimizer::accumulating_in_state_ok(model, optimizer);
    fused.step_ok(1e-2, both);
    fused.accumulate_ok(both);
    let before = fused.model().into_record().into_bytes().unwrap();
    // The second layer has no gradient: it must not be stepped for that.
    fused.dry_run_ok(first);
    assert_eq!(fused.last_step().updated, 0);
    let after = fused.model().into_record().into_bytes().unwrap();
    assert!(before.to_vec() == after.to_vec());
    fused.step_ok(1e-2, first);
    assert_eq!(fused.last_step().updated, 4);
}

/// The peak is equal with and without a step afterwards.
#[test]
fn a_checkpoint_that_is_loaded_again_and_again_leaves_nothing_behind() {
    let _alone = ALONE.lock();
    let device = Device::flex().autodiff();
    let linear = |_| LinearConfig::new(8, 8).init(&device);
    let model: Vec<Linear> = (0..16).map(linear).collect();
    let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
    fused.step_ok(1e-3, |model| {
        let x = Tensor::<2>::ones([2, 8], &device);
        model.iter().fold(x, |x, linear| linear.forward(x)).mean()
    });
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    checkpoint.save(&fused, &Progress::new(1)).unwrap();
    let mut left = || {
        let loaded: Progress = checkpoint.load(&mut fused).unwrap();
        assert_eq!(loaded.step, 1);
        BYTES.current_usage()
    };
    let (first, second) = (left(), left());
    let last = (0..8).map(|_| left()).last().unwrap();
    println!("{first}, {second}, then {last} bytes");
    // A list may have grown; it was 4 KB a parameter each time.
    assert!(last <= second + 8 * 1024, "{second}, then {last} bytes");
}
