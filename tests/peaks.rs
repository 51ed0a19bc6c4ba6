//! Memory estimates, and the bytes that dry runs and loaded checkpoints leave behind.
//!
//! A process of its own: it installs the recording allocator.

mod common;

use std::sync::Mutex;

use backburn::memory::RecordingAllocator;
use burn::optim::AdafactorConfig;
use peak_alloc::PeakAlloc;

use crate::common::*;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

/// One test at a time: they share the counters.
static ALONE: Mutex<()> = Mutex::new(());

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

fn device() -> Device {
    Device::flex().autodiff()
}

#[test]
fn estimate_takes_part_of_largest_parameter() {
    let _alone = ALONE.lock();
    let optimizers: [fn() -> ModuleOptimizer; 3] = [
        || AdamConfig::new().init(),
        || AdafactorConfig::new().init(),
        || backburn::optim::AdamWConfig::new().init(),
    ];
    let model: Embedding = EmbeddingConfig::new(20_000, 64).init(&device());
    let bytes = 4 * model.weight.val().shape().num_elements();
    // The first estimate has the threads of the backend set up what they keep for good.
    MemoryEstimate::new(&model, &SgdConfig::new().init());
    for optimizer in optimizers {
        let optimizer = optimizer();
        let before = BYTES.current_usage();
        BYTES.reset_peak_usage();
        let estimate = MemoryEstimate::new(&model, &optimizer);
        let taken = BYTES.peak_usage() - before;
        assert_eq!(estimate.parameters, bytes);
        println!("{} bytes of state, {taken} taken", estimate.optimizer_state);
        assert!(taken < bytes / 2, "{taken} bytes for {bytes}");
    }
}

/// A measurement of slices equals one of the whole.
#[test]
fn estimated_states_of_large_parameters_are_exact() {
    let _alone = ALONE.lock();
    for (shape, adam, rows_and_columns) in [
        ([20_000, 64], 8 * 20_000 * 64, 4 * (20_000 + 64)),
        ([64, 20_000], 8 * 20_000 * 64, 4 * (20_000 + 64)),
        ([2_000, 500], 8 * 2_000 * 500, 4 * (2_000 + 500)),
    ] {
        let model = EmbeddingConfig::new(shape[0], shape[1]).init(&device());
        let of = |optimizer: ModuleOptimizer| MemoryEstimate::new(&model, &optimizer);
        assert_eq!(of(AdamConfig::new().init()).optimizer_state, adam);
        let factored = of(AdafactorConfig::new().init()).optimizer_state;
        assert_eq!(factored, rows_and_columns);
    }
}

#[test]
fn estimate_with_config_counts_averages_and_host() {
    let _alone = ALONE.lock();
    let model: Linear = LinearConfig::new(64, 64).init(&device());
    let optimizer = AdamConfig::new().init();
    let plain = MemoryEstimate::new(&model, &optimizer);
    assert_eq!((plain.averages, plain.host), (0, 0));
    assert_eq!(plain.device, plain.parameters + plain.optimizer_state);
    let averaged = FusedConfig::averaging(WeightAveragingConfig::new());
    let with_average = MemoryEstimate::new_with_config(&model, &optimizer, &averaged);
    assert_eq!(with_average.averages, plain.parameters);
    assert_eq!(with_average.device, plain.device + plain.parameters);
    for (more, less) in [
        (with_average.fused, plain.fused),
        (with_average.stock, plain.stock),
    ] {
        assert_eq!(more - less, plain.parameters);
    }
    let in_bf16 = cast(model.clone(), FloatDType::BF16).unwrap();
    let in_bf16 = MemoryEstimate::new_with_config(&in_bf16, &optimizer, &averaged);
    assert_eq!(in_bf16.averages, plain.parameters);

    let offload = OffloadConfig::new(Offload::Updates).with_min_elements(0);
    let config = averaged.with_offload(Some(offload));
    let offloaded = MemoryEstimate::new_with_config(&model, &optimizer, &config);
    assert_eq!(offloaded.host, with_average.device);
    assert_eq!(offloaded.device, plain.parameters);
}
