//! A resumed training equals an uninterrupted one, and a failed load changes nothing.

use std::collections::HashMap;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::optim::LionConfig;
use serde::{Deserialize, Serialize};

use super::*;

mod other_models;
mod user_data;

/// A weight in column layout, which is recorded transposed, running statistics, and a frozen parameter.
#[derive(Module, Debug)]
struct Network {
    first: Linear,
    norm: BatchNorm,
    second: Linear,
}

impl Network {
    fn init(device: &Device) -> Self {
        let columns = LinearConfig::new(61, 71).with_layout(LinearLayout::Col);
        let network = Self {
            first: columns.init(device),
            norm: BatchNormConfig::new(71).init(device),
            second: LinearConfig::new(71, 64).init(device),
        };
        network.freeze_group(ParamGroup::from_predicate("second.bias"))
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let hidden = self.first.forward(x);
        // Burn normalizes in the type of its statistics.
        let hidden = match hidden.dtype() {
            burn::tensor::DType::F32 => self.norm.forward(hidden),
            _ => hidden,
        };
        self.second.forward(hidden.tanh()).powi_scalar(2).sum()
    }
}

type Fused = FusedOptimizer<Network>;

/// A kind of training. `in_two` accumulates over two micro-batches.
struct Way {
    name: &'static str,
    dtype: FloatDType,
    in_two: bool,
    fuse: Box<dyn Fn(Network) -> Fused>,
}

impl Way {
    fn start(&self, device: &Device) -> Fused {
        (self.fuse)(cast(Network::init(device), self.dtype).unwrap())
    }

    fn step(&self, fused: &mut Fused, rate: ModuleLearningRate, x: &Tensor<2>) {
        if self.in_two {
            fused.accumulate(|model| model.loss(x.clone())).unwrap();
            fused
                .step(rate, |model| model.loss(x.clone() * 0.5))
                .unwrap();
        } else {
            plain(fused, rate, x);
        }
    }
}

fn plain(fused: &mut Fused, rate: ModuleLearningRate, x: &Tensor<2>) {
    fused.step(rate, |model| model.loss(x.clone())).unwrap();
}

/// The pairs in `tests/pairs` save and load every option on one backend; these are on every backend.
fn ways() -> Vec<Way> {
    let way = |name, dtype, optimizer: ModuleOptimizer, config: FusedConfig| Way {
        name,
        dtype,
        in_two: false,
        fuse: Box::new(move |model| {
            FusedOptimizer::new(model, optimizer.clone())
                .unwrap()
                .with_config(config.clone())
                .unwrap()
        }),
    };
    let (f32, bf16) = (FloatDType::F32, FloatDType::BF16);
    let plain = FusedConfig::new;
    let adamw = || AdamWConfig::new().init();
    let ours = optim::AdamWConfig::new;
    let weights = ParamGroup::from_predicate("weight");
    let groups = adamw().with_group(weights, LionConfig::new().build(), None);
    let scaling = LossScalingConfig::new()
        .with_growth_interval(Some(2))
        .with_overflow(Overflow::SkipParameter);
    let scaled = FusedConfig::lagged(0.5).with_loss_scaling(Some(scaling));
    let bits8 = ours().with_state_format(StateFormat::Bits8).init();
    let bits4 = ours().with_state_format(StateFormat::Bits4);
    let bits4 = bits4.with_weight_format(WeightFormat::Split24).init();
    let ema = WeightAveragingConfig::new().with_decay(Some(0.9));
    let uniform = WeightAveragingConfig::new().with_every(2);
    let offload = |offload| {
        let config = OffloadConfig::new(offload).with_host(OffloadHost::NdArray);
        FusedConfig::offload(config.with_min_elements(1))
    };
    vec![
        way("plain", f32, adamw(), plain()),
        way("groups", f32, groups, plain()),
        way("lagged clipping", f32, adamw(), FusedConfig::lagged(0.5)),
        way("lagged clipping and loss scaling", f32, adamw(), scaled),
        way("states in 8 bits", f32, bits8, plain()),
        way("low bits of weights, states in 4", bf16, bits4, plain()),
        way("half", bf16, ours().init(), plain()),
        way("average", f32, adamw(), FusedConfig::averaging(ema)),
        way("average", f32, adamw(), FusedConfig::averaging(uniform)),
        way("offload", f32, adamw(), offload(Offload::States)),
        way("offload", f32, adamw(), offload(Offload::Updates)),
        Way {
            in_two: true,
            ..way("accumulation", f32, adamw(), plain())
        },
        Way {
            name: "accumulation in the state",
            dtype: f32,
            in_two: true,
            fuse: Box::new(move |model| {
                FusedOptimizer::accumulating_in_state(model, ours().build()).unwrap()
            }),
        },
    ]
}

fn scheduler() -> ModuleLrScheduler {
    let config = CosineAnnealingLrSchedulerConfig::new(1e-2, 8);
    config.init().unwrap()
}

fn resumed_training_equals_one_without_interruption(device: &Device) {
    let draw = |_| Tensor::<2>::random([5, 61], Distribution::Default, &device.clone().inner());
    let batches: Vec<_> = (0..6).map(draw).collect();
    for way in ways() {
        #[allow(deprecated)] // Burn 0.22 still ships it.
        let is_host = device == &Device::ndarray().autodiff();
        let lacks_type = !device.supports_dtype(way.dtype);
        if lacks_type || (way.name == "offload" && is_host) {
            continue;
        }
        let batch = |step: usize| {
            let batch = batches[step].clone().cast(way.dtype);
            Tensor::from_inner(batch)
        };
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::at(folder.path().join("run"));
        let (mut through, mut rates) = (way.start(device), scheduler());
        let mut never_saved = (way.fuse)(copy(&through.model(), || Network::init(device)));
        for step in 0..3 {
            let rate = rates.step();
            way.step(&mut never_saved, rate.clone(), &batch(step));
            way.step(&mut through, rate, &batch(step));
            let progress = Progress::new(step as u64 + 1).with_scheduler(rates.to_record());
            checkpoint.save(&through, &progress).unwrap();
        }

        // Into a training with other contents.
        let mut resumed = way.start(device);
        way.step(&mut resumed, 0.5.into(), &batch(5));
        let progress: Progress = checkpoint.load(&mut resumed).unwrap();
        assert_eq!(progress.step, 3);
        let mut resumed_rates = scheduler().load_record(progress.scheduler);
        for step in 3..6 {
            let rate = rates.step();
            way.step(&mut never_saved, rate.clone(), &batch(step));
            way.step(&mut through, rate, &batch(step));
            way.step(&mut resumed, resumed_rates.step(), &batch(step));
            let (through, resumed) = (through.last_step(), resumed.last_step());
            if is_exact(device) {
                assert_eq!(through.clipping, resumed.clipping, "{}", way.name);
            }
            assert_eq!(through.loss_scale, resumed.loss_scale, "{}", way.name);
        }
        assert_equal_weights(&never_saved.model(), &through.model());
        assert_equal_weights(&through.model(), &resumed.model());
        assert_equal_weights(&through.averaged(), &resumed.averaged());
    }
}

fn start(device: &Device) -> Fused {
    FusedOptimizer::new(Network::init(device), AdamWConfig::new().init()).unwrap()
}

/// A checkpoint of `fused` in a new folder.
fn saved<M: Module>(fused: &FusedOptimizer<M>) -> (Checkpoint, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    checkpoint.save(fused, &Progress::new(1)).unwrap();
    (checkpoint, folder)
}

fn load_that_fails_changes_nothing(device: &Device) {
    let x = Tensor::<2>::random([5, 61], Distribution::Default, device);
    let with_second = |change: &dyn Fn(Linear) -> Linear| {
        let mut model = Network::init(device);
        model.second = change(model.second);
        saved(&FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap())
    };
    let mut lion = FusedOptimizer::new(Network::init(device), LionConfig::new().init()).unwrap();
    plain(&mut lion, 0.1.into(), &x);
    let narrower = with_second(&|_| LinearConfig::new(71, 63).init(device));
    let mut types = [FloatDType::F64, FloatDType::F16].into_iter();
    let another = types.find(|dtype| device.supports_dtype(*dtype)).unwrap();
    let in_another = with_second(&|second| cast(second, another).unwrap());

    let mut fused = start(device);
    plain(&mut fused, 0.1.into(), &x);
    let mut twin = FusedOptimizer::new(
        copy(&fused.model(), || Network::init(device)),
        AdamWConfig::new().init(),
    )
    .unwrap();
    twin.load_record(fused.to_record()).unwrap();
    let before = weights(&fused.model());
    for ((checkpoint, _folder), words) in [
        (saved(&lion), "optimizer.bpk"),
        (narrower, "second.weight"),
        (in_another, "another `second.weight` (F"),
    ] {
        let refused = checkpoint.load::<()>(&mut fused).unwrap_err();
        assert_says(&refused, words);
        assert!(before == weights(&fused.model()), "{refused}");
    }
    plain(&mut fused, 0.1.into(), &x);
    plain(&mut twin, 0.1.into(), &x);
    assert_equal_weights(&twin.model(), &fused.model());
}

/// Burn reads a file when its values are used.
fn loaded_training_needs_no_files(device: &Device) {
    let x = Tensor::<2>::random([5, 61], Distribution::Default, device);
    let mut fused = start(device);
    plain(&mut fused, 0.1.into(), &x);
    let (checkpoint, folder) = saved(&fused);
    let mut resumed = start(device);
    checkpoint.load::<()>(&mut resumed).unwrap();
    // The files are first replaced by those of another training, and then removed.
    for _ in 0..2 {
        checkpoint.save(&start(device), &Progress::new(1)).unwrap();
    }
    drop(folder);
    assert_equal_weights(&fused.model(), &resumed.model());
    for fused in [&mut fused, &mut resumed] {
        plain(fused, 0.1.into(), &x);
    }
    assert_equal_weights(&fused.model(), &resumed.model());
}

on_every_backend!(
    resumed_training_equals_one_without_interruption,
    loaded_training_needs_no_files,
    load_that_fails_changes_nothing,
);

#[test]
fn save_with_accumulated_gradients_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let loss = |model: &Small| model.weight.val().powi_scalar(2).sum();
    let in_state = optim::AdamWConfig::new().build();
    for mut training in [
        small(),
        FusedOptimizer::accumulating_in_state(Small::init(), in_state).unwrap(),
    ] {
        training.accumulate(loss).unwrap();
        let refused = checkpoint.save(&training, &Progress::new(1)).unwrap_err();
        assert_eq!(refused, CheckpointError::Accumulated);
        assert!(checkpoint.steps().unwrap().is_empty());
        training.step(0.1, loss).unwrap();
        checkpoint.save(&training, &Progress::new(1)).unwrap();
        fs::remove_dir_all(folder.path().join("step-1")).unwrap();
    }
}

#[test]
fn model_loaded_alone_outlives_its_file() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 3);
    let record = Checkpoint::at(folder.path()).model().unwrap();
    save_as(folder.path(), 3, 4);
    fs::remove_dir_all(folder.path().join("step-3")).unwrap();
    let model = Small::init().load_record(record);
    assert_equal_weights(&after(3).model(), &model);
}

/// Low-bit optimizer states are written in their own format on request.
#[test]
fn compact_checkpoint_is_small_and_resumes_same() {
    let device = &Device::flex().autodiff();
    let config = optim::AdamWConfig::new().with_state_format(StateFormat::Bits8);
    let fused = || FusedOptimizer::new(Network::init(device), config.init()).unwrap();
    let x = Tensor::<2>::random([5, 61], Distribution::Default, device);
    let mut through = fused();
    plain(&mut through, 0.1.into(), &x);
    let full = saved(&through);
    let compact = optim::compact_records(|| saved(&through));
    plain(&mut through, 0.1.into(), &x);
    let [full, compact] = [full, compact].map(|(checkpoint, folder)| {
        let mut resumed = fused();
        checkpoint.load::<()>(&mut resumed).unwrap();
        plain(&mut resumed, 0.1.into(), &x);
        assert_equal_weights(&through.model(), &resumed.model());
        files(folder.path())[Path::new("step-1/optimizer.bpk")].len()
    });
    assert!(compact * 2 < full);
}

/// A model with rows without elements, and a layer.
#[derive(Module, Debug)]
struct Empty {
    rows: Param<Tensor<2>>,
    layer: Linear,
}

#[test]
fn parameter_without_elements_is_loaded() {
    let device = Device::flex().autodiff();
    let training = || {
        let model = Empty {
            rows: Param::from_tensor(Tensor::zeros([5, 0], &device)),
            layer: LinearConfig::new(4, 4).init(&device),
        };
        FusedOptimizer::new(model, optim::AdamWConfig::new().init()).unwrap()
    };
    let step = |fused: &mut FusedOptimizer<Empty>| {
        let x = Tensor::<2>::ones([2, 4], &device);
        fused
            .step(1e-2, |model| {
                model.layer.forward(x).powi_scalar(2).mean() + model.rows.val().sum()
            })
            .unwrap();
    };
    let mut through = training();
    step(&mut through);
    let (checkpoint, folder) = saved(&through);
    let mut loaded = training();
    checkpoint.load::<()>(&mut loaded).unwrap();
    drop(folder);
    step(&mut through);
    step(&mut loaded);
    assert_eq!(loaded.last_step().updated, 3);
    assert_equal_weights(&through.model(), &loaded.model());
}
