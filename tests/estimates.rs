//! Peaks are estimated for models of many kinds before their first step.
//!
//! A process of its own: it counts every allocated byte.

mod common;
#[path = "../benches/plan/models.rs"]
mod models;
#[allow(dead_code)] // A part of a benchmark.
#[path = "../benches/estimates/peaks.rs"]
mod peaks;

use std::sync::Mutex;

use backburn::memory::{MemoryRecorder, MemoryTimeline, RecordingAllocator};
use burn::optim::AdafactorConfig;
use peak_alloc::PeakAlloc;

use models::*;
use peaks::{OPTIMIZERS, Peaks};

use crate::common::*;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

/// One test at a time: they share the counters.
static ALONE: Mutex<()> = Mutex::new(());

/// Estimates in multiples of what training takes, from `least` to `most`.
fn hold<K: Kind>(least: f64, most: f64) {
    let _alone = ALONE.lock();
    let timeline = peaks::dry_run::<K>();
    for name in ["SGD", "momentum", "Lion", "AdamW", "Adafactor", "in 8 bits"] {
        let known = OPTIMIZERS.into_iter().find(|(known, _)| *known == name);
        let (name, optimizer) = known.unwrap();
        let Peaks {
            estimated,
            measured,
        } = peaks::of::<K>(&timeline, optimizer);
        for (way, place) in [("stock", 0), ("fused", 1), ("blocks", 2)] {
            let (estimated, measured) = (estimated[place], measured[place]);
            let ratio = estimated as f64 / measured as f64;
            println!("{} {name} {way}: {ratio:.3}", K::NAME);
            assert!(
                (least..=most).contains(&ratio),
                "{} {name} {way}: {estimated} for {measured}, {ratio:.3}",
                K::NAME
            );
        }
    }
}

macro_rules! hold {
    ($($test:ident: $model:ty, $least:expr, $most:expr;)*) => {
        $(#[test]
        fn $test() {
            hold::<$model>($least, $most);
        })*
    };
}

hold! {
    estimates_of_a_residual_network_hold: Mlp, 0.98, 1.05;
    estimates_without_blocks_hold: Plain, 0.98, 1.05;
    estimates_of_a_recurrent_network_hold: Recurrent, 0.98, 1.05;
    estimates_of_a_convolutional_network_hold: Convolutional, 0.98, 1.1;
    estimates_of_tied_weights_hold: Tied, 0.98, 1.05;
    estimates_of_a_network_that_draws_hold: Variational, 0.98, 1.05;
    estimates_of_a_mixture_of_experts_hold: Mixture, 0.98, 1.05;
    estimates_of_embeddings_hold: Bag, 0.98, 1.05;
    estimates_of_a_loss_in_chunks_hold: Language, 0.98, 1.05;
    estimates_of_adapters_hold: Adapted, 0.98, 1.05;
    estimates_of_adapters_on_codes_hold: InCodes, 0.98, 1.05;
    estimates_of_attention_over_a_recurrent_network_hold: Attentive, 0.98, 1.05;
    estimates_of_tied_weights_with_batch_normalization_hold: Normed, 0.98, 1.05;
    estimates_of_a_deep_network_with_dropout_hold: Deep, 0.98, 1.05;
}

/// Lets one test run at a time: the bytes of several threads differ from pass to pass.
fn in_one_thread(work: impl FnOnce() + Send) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    pool.unwrap().install(work);
}

#[test]
fn estimates_of_a_u_net_hold() {
    in_one_thread(|| hold::<UNet>(0.98, 1.1));
}

#[test]
fn estimates_of_adversarial_networks_hold() {
    in_one_thread(|| hold::<Adversarial>(0.98, 1.05));
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn loss(model: &Linear) -> Tensor<1> {
    model.forward(Tensor::<2>::ones([3, 8], &device())).mean()
}

fn recorded(work: impl FnOnce(&mut FusedOptimizer<Linear>)) -> MemoryTimeline {
    let model = LinearConfig::new(8, 8).init(&device());
    let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init());
    let recorder = MemoryRecorder::start().unwrap();
    work(&mut fused);
    recorder.finish().unwrap()
}

#[test]
fn a_recording_that_is_no_dry_run_of_this_model_is_refused_by_name() {
    let _alone = ALONE.lock();
    let optimizer = SgdConfig::new().init();
    let estimate = MemoryEstimate::new(&LinearConfig::new(8, 8).init(&device()), &optimizer);
    let refused = |timeline: &MemoryTimeline, words: &str| {
        let error = estimate.with_dry_run(timeline).unwrap_err();
        assert_matches!(error, FusedError::UnusableRecording { .. });
        assert_says(&error, words);
    };
    let dry = recorded(|fused| drop(fused.dry_run_ok(loss)));
    estimate.with_dry_run(&dry).unwrap();
    // Several are as good as one.
    estimate
        .with_dry_run(&recorded(|fused| {
            (0..3).for_each(|_| drop(fused.dry_run_ok(loss)))
        }))
        .unwrap();
    let step = recorded(|fused| drop(fused.step_ok(1e-3, loss)));
    refused(&step, "not a dry run");
    let both = recorded(|fused| {
        fused.dry_run_ok(loss);
        fused.step_ok(1e-3, loss);
    });
    refused(&both, "not a dry run");
    let forward = recorded(|fused| drop(loss(&fused.model())));
    refused(&forward, "no dry run");

    let larger = MemoryEstimate::new(&LinearConfig::new(8, 9).init(&device()), &optimizer);
    let error = larger.with_dry_run(&dry).unwrap_err().to_string();
    assert_says(&error, "another model");

    // What a file may hold.
    let mut damaged = dry;
    damaged.samples.clear();
    refused(&damaged, "empty");
}

#[test]
fn an_estimate_takes_a_part_of_the_largest_parameter() {
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
fn states_of_large_parameters_are_those_that_training_has() {
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
        (with_average.recomputed, plain.recomputed),
        (with_average.stock, plain.stock),
    ] {
        // Bookkeeping of the process is measured each time.
        assert!((more - less).abs_diff(plain.parameters) < 512);
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
