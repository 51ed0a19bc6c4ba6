//! The memory recorder counts correctly in stock and fused training.

use backburn::memory::{
    self, MemoryError, MemoryRecorder, MemoryTimeline, PeakMemoryMetric, Phase, Sample,
};

use super::*;

const WIDTH: usize = 192;
const DEPTH: usize = 6;
const STEPS: usize = 3;

/// Layers of equal size: 148,224 bytes each.
type Stack = Vec<Linear>;

fn init(device: &Device) -> Stack {
    linears(DEPTH, WIDTH, device)
}

fn loss(model: &Stack, x: Tensor<2>) -> Tensor<1> {
    let run = |x, linear: &Linear| Gelu::new().forward(linear.forward(x));
    model.iter().fold(x, run).powi_scalar(2).mean()
}

fn bytes(model: &Stack) -> usize {
    4 * model.num_params()
}

fn x(device: &Device) -> Tensor<2> {
    Tensor::random([4, WIDTH], Distribution::Default, device)
}

/// Three steps, recorded, and the peak of the independent counter.
fn record_fused(device: &Device) -> (MemoryTimeline, usize, usize) {
    let model = init(device);
    let parameters = bytes(&model);
    let x = x(device);
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let recorder = MemoryRecorder::start().unwrap();
    BYTES.reset_peak_usage();
    for _ in 0..STEPS {
        fused.step(1e-3, |model| loss(model, x.clone())).unwrap();
    }
    let peak = BYTES.peak_usage();
    (recorder.finish().unwrap(), parameters, peak)
}

fn record_stock(device: &Device) -> (MemoryTimeline, usize, usize) {
    let mut model = init(device);
    let parameters = bytes(&model);
    let x = x(device);
    let mut optimizer = AdamConfig::new().init();
    let recorder = MemoryRecorder::start().unwrap();
    BYTES.reset_peak_usage();
    recorder.parameters(&model);
    for _ in 0..STEPS {
        let loss = recorder.forward(|| loss(&model, x.clone()));
        let gradients = recorder.backward(|| GradientsParams::from_grads(loss.backward(), &model));
        recorder.gradients(&gradients, &model);
        model = recorder.update(|| optimizer.step(1e-3, model, gradients));
        recorder.parameters(&model);
    }
    let peak = BYTES.peak_usage();
    (recorder.finish().unwrap(), parameters, peak)
}

#[track_caller]
fn assert_near(actual: usize, expected: usize, tolerance: f64) {
    let error = actual.abs_diff(expected) as f64 / expected as f64;
    assert!(error <= tolerance, "{actual} bytes, {expected} expected");
}

/// The last sample of each phase for which `is` returns `true`.
fn ends(timeline: &MemoryTimeline, is: impl Fn(&Phase) -> bool) -> Vec<Sample> {
    let samples = timeline.samples.windows(2);
    let last = samples.filter(|pair| pair[0].mark != pair[1].mark && is(timeline.phase(&pair[0])));
    last.map(|pair| pair[0]).collect()
}

fn on_both_backends(test: impl Fn(&Device)) {
    test(&device());
    test(&other());
}

#[test]
fn recorded_peak_matches_independent_counter() {
    alone!();
    // On one thread, because the recorder and the counter may order concurrent allocations differently.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1);
    let pool = pool.build().unwrap();
    on_both_backends(|device| {
        for record in [record_stock, record_fused] {
            let (timeline, _, peak) = pool.install(|| record(device));
            assert_near(timeline.peak().bytes.total(), peak, 0.01);
            assert_eq!(timeline.lost, 0);
        }
    });
}

/// A thread adds small amounts to the counter from time to time, and at its end.
#[test]
fn bytes_of_ended_threads_are_counted() {
    alone!();
    // Threads of the harness and of the pool allocate, too: both counters see them.
    let beyond = || memory::live(&device()).unwrap() as isize - BYTES.current_usage() as isize;
    let before = beyond();
    let threads = (0..500).map(|_| std::thread::spawn(|| vec![0_u8; 3000]).join());
    let held: Vec<_> = threads.collect::<Result<_, _>>().unwrap();
    let missing = before - beyond();
    assert!(missing.abs() < 50_000, "{missing} of {}", 3000 * held.len());
}

#[test]
fn fused_step_holds_parameters_state_and_one_gradient() {
    alone!();
    on_both_backends(|device| {
        let (timeline, parameters, _) = record_fused(device);
        let layer = parameters / DEPTH;
        for sample in &timeline.samples {
            let bytes = sample.bytes;
            assert!(bytes.gradients <= layer, "{bytes:?}");
            assert!(bytes.parameters <= parameters + layer);
            assert!(bytes.optimizer_state <= 2 * parameters + 2 * layer);
        }
        let last = timeline.samples.last().unwrap().bytes;
        assert_near(last.parameters, parameters, 0.0);
        assert_near(last.optimizer_state, 2 * parameters, 0.02);
        assert_eq!(last.gradients, 0);

        let updates = ends(&timeline, |phase| matches!(phase, Phase::Update { .. }));
        assert_eq!(updates.len(), 2 * DEPTH * STEPS);
    });
}

#[test]
fn stock_step_holds_all_gradients_before_update() {
    alone!();
    on_both_backends(|device| {
        let (timeline, parameters, _) = record_stock(device);
        let backward = ends(&timeline, |phase| *phase == Phase::Backward);
        assert_eq!(backward.len(), STEPS);
        for sample in backward {
            assert_near(sample.bytes.gradients, parameters, 0.0);
            assert_near(sample.bytes.parameters, parameters, 0.0);
        }
        let last = timeline.samples.last().unwrap().bytes;
        assert_near(last.parameters, parameters, 0.0);
        // The update of stock Burn also makes new leaves on the autodiff graph.
        assert_near(last.optimizer_state, 2 * parameters, 0.03);
        assert_eq!(last.gradients, 0);
    });
}

#[test]
fn phases_name_parameters_and_summary_names_peak() {
    alone!();
    let (timeline, _, _) = record_fused(&device());

    let phases = timeline.marks.iter().map(|mark| mark.phase.to_string());
    let step: Vec<String> = phases.skip(1).take(5).collect();
    assert_eq!(step[..2], ["forward", "backward"]);
    assert!(step[2].starts_with("update of 5."), "{}", step[2]);
    assert_eq!(step[3], "backward");
    assert!(step[4].starts_with("update of 5."), "{}", step[4]);

    let peak = timeline.peak();
    for words in [
        format!("peak {:.1} MB", peak.bytes.total() as f64 / 1e6),
        format!("in phase: {}", timeline.phase(peak)),
        format!("rest {:.1} MB", peak.bytes.rest as f64 / 1e6),
    ] {
        assert_says(&timeline, &words);
    }
}

#[test]
fn recording_with_panic_in_step_is_complete() {
    alone!();
    let device = device();
    let mut fused = FusedOptimizer::new(init(&device), AdamConfig::new().init()).unwrap();
    let recorder = MemoryRecorder::start().unwrap();
    fused.step(1e-3, |model| loss(model, x(&device))).unwrap();
    panic_of(|| {
        fused
            .step(1e-3, |_| -> Tensor<1> { panic!("the data ran out") })
            .unwrap()
    });
    let timeline = recorder.finish().unwrap();
    let phases: Vec<_> = timeline.marks.iter().map(|mark| &mark.phase).collect();
    assert_eq!(phases.iter().filter(|p| ***p == Phase::Forward).count(), 2);
    assert_eq!(**phases.last().unwrap(), Phase::Other);
}

#[test]
fn base_of_adapters_counts_as_parameters() {
    alone!();
    let device = device();
    let adapted = || -> Linear {
        let linear = LinearConfig::new(1024, 1024).with_bias(false);
        linear.init(&device).apply_lora(Lora::new(2, 4.0))
    };
    let base = 4 * 1024 * 1024;
    for (model, trains_base) in [(adapted(), false), (adapted().unfreeze(), true)] {
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
        let recorder = MemoryRecorder::start().unwrap();
        let x = Tensor::<2>::ones([4, 1024], &device);
        fused.step(1e-3, |model| model.forward(x).mean()).unwrap();
        let timeline = recorder.finish().unwrap();
        let last = timeline.samples.last().unwrap().bytes;
        assert_near(last.parameters, base, 0.02);
        let gradients = timeline.samples.iter().map(|it| it.bytes.gradients);
        assert_eq!(gradients.max().unwrap() >= base, trains_base);
    }
}

/// The sums are in f32, the gradients in bf16.
#[test]
fn sums_in_f32_count_as_gradients() {
    alone!();
    let device = device();
    let model = cast(init(&device), FloatDType::BF16).unwrap();
    let sums = bytes(&model);
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::new().with_full_precision_accumulation(true))
        .unwrap();
    let x = x(&device).cast(FloatDType::BF16);
    let recorder = MemoryRecorder::start().unwrap();
    fused.accumulate(|model| loss(model, x.clone())).unwrap();
    let last = recorder.finish().unwrap().samples.last().unwrap().bytes;
    assert_near(last.gradients, sums, 0.05);
}

#[test]
fn recording_holds_passes_of_long_recurrent_network() {
    use burn::nn::{Lstm, LstmConfig};

    alone!();
    let device = device();
    let layer = |_| LstmConfig::new(8, 8, true).init(&device);
    let model: Vec<Lstm> = (0..2).map(layer).collect();
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let x = Tensor::<3>::random([1, 300, 8], Distribution::Default, &device);
    let mut pass = || {
        let layers = |model: &Vec<Lstm>| {
            let layers = model.iter();
            layers.fold(x.clone(), |x, layer| layer.forward(x, None).0)
        };
        fused
            .dry_run(|model| layers(model).powi_scalar(2).mean())
            .unwrap();
    };
    pass();
    let recorder = MemoryRecorder::start().unwrap();
    // More events than a log of fixed size can hold.
    (0..8).for_each(|_| pass());
    let timeline = recorder.finish().unwrap();
    assert_eq!(timeline.lost, 0);
    let forward = timeline
        .marks
        .iter()
        .filter(|it| it.phase == Phase::Forward);
    assert_eq!(forward.count(), 8);
}

#[test]
fn log_is_not_counted_and_freed_with_recording() {
    alone!();
    let device = device();
    let model = init(&device);
    let x = x(&device);
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let mut step = || drop(fused.step(1e-3, |model| loss(model, x.clone())).unwrap());
    step();
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    step();
    let without = BYTES.peak_usage();
    for finishes in [true, false] {
        let recorder = MemoryRecorder::start().unwrap();
        BYTES.reset_peak_usage();
        (0..3).for_each(|_| step());
        assert_near(BYTES.peak_usage(), without, 0.05);
        if finishes {
            recorder.finish().unwrap();
        }
    }
    let left = BYTES.current_usage().abs_diff(before);
    assert!(left < 100_000, "{left} bytes are left of two recordings");
}

#[test]
fn recorder_misuse_is_an_error() {
    alone!();
    let recorder = MemoryRecorder::start().unwrap();
    assert_matches!(MemoryRecorder::start(), Err(MemoryError::AlreadyRecording));
    drop(recorder);

    // Threads of the test harness may allocate during one of them.
    let mut nothing = (0..100).map(|_| MemoryRecorder::start().unwrap().finish());
    assert!(nothing.any(|it| matches!(it, Err(MemoryError::Empty))));

    let (timeline, _, _) = record_fused(&device());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/memory.json");
    let error = timeline.save_json(&path).unwrap_err().to_string();
    assert_says(&error, "missing/memory.json can't be written");
}

#[test]
fn timeline_is_written_and_read_back() {
    alone!();
    let (timeline, _, _) = record_fused(&device());
    let folder = tempfile::tempdir().unwrap();

    let json = folder.path().join("memory.json");
    timeline.save_json(&json).unwrap();
    let read = std::fs::read(json).unwrap();
    let read: MemoryTimeline = serde_json::from_slice(&read).unwrap();
    assert_eq!(read, timeline);
}

#[test]
fn learner_holds_weights_once_and_logs_peak_of_each_step() {
    use backburn::train::{FusedLearner, LaunchFused};
    use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
    use burn::data::dataset::InMemDataset;
    use burn::lr_scheduler::constant::ConstantLr;
    use burn::train::{RegressionOutput, SupervisedTraining};

    #[derive(Module, Debug)]
    struct Model {
        layers: Stack,
    }

    impl Model {
        fn output(&self, x: Tensor<2>) -> RegressionOutput {
            let loss = loss(&self.layers, x.clone());
            RegressionOutput::new(loss, x.clone(), x)
        }
    }

    impl_train_step!(Model, Tensor<2>);
    impl_inference_step!(Model, Tensor<2>);

    struct Ones;

    impl Batcher<u8, Tensor<2>> for Ones {
        fn batch(&self, items: Vec<u8>, device: &Device) -> Tensor<2> {
            Tensor::ones([items.len(), WIDTH], device)
        }
    }

    alone!();
    let loader = || {
        let items = InMemDataset::new(vec![0; 12]);
        DataLoaderBuilder::new(Ones).batch_size(4).build(items)
    };
    let model = Model {
        layers: init(&device()),
    };
    let parameters = bytes(&model.layers);
    let learner = FusedLearner::new(model, AdamConfig::new().init(), ConstantLr::new(1e-3));
    let folder = tempfile::tempdir().unwrap();
    let recorder = MemoryRecorder::start().unwrap();
    BYTES.reset_peak_usage();
    SupervisedTraining::new(folder.path(), loader(), loader())
        .metric_train_numeric(PeakMemoryMetric::new())
        .with_application_logger(None)
        .num_epochs(2)
        .launch_fused(learner);
    let peak = BYTES.peak_usage() as f64 / 1e6;
    let timeline = recorder.finish().unwrap();

    // The learner has no second copy of the weights.
    let updates = ends(&timeline, |phase| matches!(phase, Phase::Update { .. }));
    assert_eq!(updates.len(), 2 * DEPTH * 6);
    for sample in &updates[2 * DEPTH..] {
        assert_near(sample.bytes.parameters, parameters, 0.0);
    }

    for epoch in ["epoch-1", "epoch-2"] {
        let logs = std::fs::read_dir(folder.path().join("train").join(epoch)).unwrap();
        let mut logs = logs.map(|log| std::fs::read_to_string(log.unwrap().path()).unwrap());
        let log = logs.next().unwrap();
        let values = log.lines().map(|line| line.split(',').next().unwrap());
        let values: Vec<f64> = values.map(|value| value.parse().unwrap()).collect();
        // The peaks of three steps, and the largest for the epoch.
        let [steps @ .., epoch] = &values[..] else {
            panic!("the log is empty");
        };
        assert_eq!(steps.len(), 3, "{log}");
        assert_eq!(*epoch, steps.iter().copied().fold(0.0, f64::max));
        let model = parameters as f64 / 1e6;
        // Threads that have ended may have kept a few KB to themselves.
        let most = peak + 0.1;
        let are_within = values.iter().all(|it| (model..=most).contains(it));
        assert!(are_within, "{log}");
    }
}

#[test]
fn weights_and_states_in_formats_are_recorded_as_stored() {
    use backburn::optim::AdamWConfig;

    alone!();
    let device = device();
    let model = cast(init(&device), FloatDType::BF16).unwrap();
    let elements = DEPTH * WIDTH * WIDTH;
    let optimizer = AdamWConfig::new()
        .with_state_format(StateFormat::Bits8)
        .with_weight_format(WeightFormat::Split24);
    let x = Tensor::from_inner(x(&device).inner().cast(FloatDType::BF16));
    let mut fused = FusedOptimizer::new(model, optimizer.init()).unwrap();
    let recorder = MemoryRecorder::start().unwrap();
    for _ in 0..STEPS {
        fused.step(1e-3, |model| loss(model, x.clone())).unwrap();
    }
    let timeline = recorder.finish().unwrap();
    let last = timeline.samples.last().unwrap().bytes;
    assert_near(last.parameters, 2 * elements, 0.03);
    // Two codes and low bits of one byte each; two scales and a checksum of four bytes for every 64; full moments of
    // the biases; and about 4 KB of bookkeeping per parameter.
    let state = 3 * elements + 12 * elements / 64 + DEPTH * WIDTH * 9 + 2 * DEPTH * 4096;
    assert_near(last.optimizer_state, state, 0.03);
}
