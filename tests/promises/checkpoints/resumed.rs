//! A resumed training is the one that was not interrupted, and a load that fails changes nothing.

use std::collections::HashMap;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::module::{QLora, Quantizer};
use burn::optim::LionConfig;
use burn::tensor::quantization::{Calibration, QuantValue};
use serde::{Deserialize, Serialize};

use super::*;
use crate::backends::on_every_backend;
use crate::common::*;

mod user_data;

/// A weight in columns, which is recorded the other way round, running statistics, and a frozen parameter.
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

struct Way {
    name: &'static str,
    dtype: FloatDType,
    fuse: Box<dyn Fn(Network) -> Fused>,
    step: fn(&mut Fused, ModuleLearningRate, &Tensor<2>),
}

impl Way {
    fn start(&self, device: &Device) -> Fused {
        (self.fuse)(cast(Network::init(device), self.dtype).unwrap())
    }
}

fn plain(fused: &mut Fused, rate: ModuleLearningRate, x: &Tensor<2>) {
    fused.step_ok(rate, |model| model.loss(x.clone()));
}

fn in_two(fused: &mut Fused, rate: ModuleLearningRate, x: &Tensor<2>) {
    fused.accumulate_ok(|model| model.loss(x.clone()));
    fused.step_ok(rate, |model| model.loss(x.clone() * 0.5));
}

fn ways() -> Vec<Way> {
    fn way(
        name: &'static str,
        dtype: FloatDType,
        optimizer: fn() -> ModuleOptimizer,
        config: FusedConfig,
    ) -> Way {
        Way {
            name,
            dtype,
            fuse: Box::new(move |model| {
                FusedOptimizer::new_ok(model, optimizer()).with_config_ok(config.clone())
            }),
            step: plain,
        }
    }
    let config = FusedConfig::new;
    let lagged = || config().with_clipping(Some(GlobalNormClippingConfig::Lagged(0.5)));
    let scaling = LossScalingConfig::new()
        .with_growth_interval(Some(2))
        .with_overflow(Overflow::SkipParameter);
    let ours = optim::AdamWConfig::new;
    let adamw: fn() -> ModuleOptimizer = || AdamWConfig::new().init();
    let mut ways = vec![
        way("plain", FloatDType::F32, adamw, config()),
        way(
            "groups",
            FloatDType::F32,
            || {
                let lion = LionConfig::new().build();
                let weights = ParamGroup::from_predicate("weight");
                AdamWConfig::new().init().with_group(weights, lion, None)
            },
            config(),
        ),
        way("lagged clipping", FloatDType::F32, adamw, lagged()),
        way(
            "lagged clipping and loss scaling",
            FloatDType::F32,
            adamw,
            lagged().with_loss_scaling(Some(scaling)),
        ),
        way(
            "states in 8 bits",
            FloatDType::F32,
            || {
                let config = optim::AdamWConfig::new().with_state_format(StateFormat::Bits8);
                config.init()
            },
            config(),
        ),
        way(
            "bf16 with hidden bits and states in 4",
            FloatDType::BF16,
            || {
                let config = optim::AdamWConfig::new().with_state_format(StateFormat::Bits4);
                config.with_weight_format(WeightFormat::Split24).init()
            },
            config(),
        ),
        way(
            "bf16",
            FloatDType::BF16,
            || optim::AdamWConfig::new().init(),
            config(),
        ),
        Way {
            step: in_two,
            ..way("accumulation", FloatDType::F32, adamw, config())
        },
        Way {
            name: "accumulation in the state",
            dtype: FloatDType::F32,
            fuse: Box::new(move |model| {
                FusedOptimizer::accumulating_in_state_ok(model, ours().build())
            }),
            step: in_two,
        },
    ];
    let ema = WeightAveragingConfig::new().with_decay(Some(0.9));
    let uniform = WeightAveragingConfig::new().with_every(2);
    for averaging in [ema, uniform] {
        let config = lagged().with_averaging(Some(averaging));
        ways.push(way("average", FloatDType::F32, adamw, config));
    }
    for what in [Offload::States, Offload::Updates] {
        let offload = OffloadConfig::new(what)
            .with_host(OffloadHost::NdArray)
            .with_min_elements(1);
        let config = config().with_offload(Some(offload));
        ways.push(way("offload", FloatDType::F32, adamw, config));
    }
    ways
}

fn scheduler() -> ModuleLrScheduler {
    let config = CosineAnnealingLrSchedulerConfig::new(1e-2, 8);
    config.init().unwrap()
}

fn a_resumed_training_equals_one_that_was_not_interrupted(device: &Device) {
    let draw = |_| Tensor::<2>::random([5, 61], Distribution::Default, &device.clone().inner());
    let batches: Vec<_> = (0..6).map(draw).collect();
    for way in ways() {
        #[allow(deprecated)] // Burn 0.22 still ships it.
        let is_host = device == &Device::ndarray().autodiff();
        let in_bf16 = way.dtype == FloatDType::BF16 || way.name.contains("bf16");
        let lacks_type = in_bf16 && !device.supports_dtype(FloatDType::BF16);
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
            (way.step)(&mut never_saved, rate.clone(), &batch(step));
            (way.step)(&mut through, rate, &batch(step));
            let progress = Progress::new(step as u64 + 1).with_scheduler(rates.to_record());
            checkpoint.save(&through, &progress).unwrap();
        }

        // One that was something else before.
        let mut resumed = way.start(device);
        (way.step)(&mut resumed, 0.5.into(), &batch(5));
        let progress: Progress = checkpoint.load(&mut resumed).unwrap();
        assert_eq!(progress.step, 3);
        let mut resumed_rates = scheduler().load_record(progress.scheduler);
        for step in 3..6 {
            let rate = rates.step();
            (way.step)(&mut never_saved, rate.clone(), &batch(step));
            (way.step)(&mut through, rate, &batch(step));
            (way.step)(&mut resumed, resumed_rates.step(), &batch(step));
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

fn a_load_that_fails_changes_nothing(device: &Device) {
    let x = Tensor::<2>::random([5, 61], Distribution::Default, device);
    let start = || FusedOptimizer::new_ok(Network::init(device), AdamWConfig::new().init());
    let saved = |fused: &Fused| {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::at(folder.path());
        checkpoint.save(fused, &Progress::new(1)).unwrap();
        (checkpoint, folder)
    };
    let mut other = start();
    plain(&mut other, 0.1.into(), &x);
    let (of_lion, _lion) = {
        let mut lion = FusedOptimizer::new_ok(Network::init(device), LionConfig::new().init());
        plain(&mut lion, 0.1.into(), &x);
        saved(&lion)
    };
    let (narrower, _narrower) = {
        let mut model = Network::init(device);
        model.second = LinearConfig::new(71, 63).init(device);
        saved(&FusedOptimizer::new_ok(model, AdamWConfig::new().init()))
    };
    let (in_another, _in_another) = {
        let mut types = [FloatDType::F64, FloatDType::F16].into_iter();
        let another = types.find(|dtype| device.supports_dtype(*dtype));
        let mut model = Network::init(device);
        model.second = cast(model.second, another.unwrap()).unwrap();
        saved(&FusedOptimizer::new_ok(model, AdamWConfig::new().init()))
    };

    let mut fused = start();
    plain(&mut fused, 0.1.into(), &x);
    let mut twin = FusedOptimizer::new_ok(
        copy(&fused.model(), || Network::init(device)),
        AdamWConfig::new().init(),
    );
    twin.load_record_ok(fused.to_record());
    let before = weights(&fused.model());
    for (checkpoint, words) in [
        (&of_lion, "optimizer.bpk"),
        (&narrower, "second.weight"),
        (&in_another, "another `second.weight` (F"),
    ] {
        let refused = checkpoint.load::<()>(&mut fused).unwrap_err();
        assert_says(&refused, words);
        assert!(before == weights(&fused.model()), "{refused}");
    }
    plain(&mut fused, 0.1.into(), &x);
    plain(&mut twin, 0.1.into(), &x);
    assert_equal_weights(&twin.model(), &fused.model());
}

/// Burn reads what is in a file when somebody looks at it.
fn a_loaded_training_needs_the_files_no_more(device: &Device) {
    let x = Tensor::<2>::random([5, 61], Distribution::Default, device);
    let start = || FusedOptimizer::new_ok(Network::init(device), AdamWConfig::new().init());
    let mut fused = start();
    plain(&mut fused, 0.1.into(), &x);
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    checkpoint.save(&fused, &Progress::new(1)).unwrap();
    let mut resumed = start();
    checkpoint.load::<()>(&mut resumed).unwrap();
    // Those of another training are in their place then, and none at last.
    for _ in 0..2 {
        checkpoint.save(&start(), &Progress::new(1)).unwrap();
    }
    drop(folder);
    assert_equal_weights(&fused.model(), &resumed.model());
    for fused in [&mut fused, &mut resumed] {
        plain(fused, 0.1.into(), &x);
    }
    assert_equal_weights(&fused.model(), &resumed.model());
}

on_every_backend!(
    a_resumed_training_equals_one_that_was_not_interrupted,
    a_loaded_training_needs_the_files_no_more,
    a_load_that_fails_changes_nothing,
);

/// A layer that had been removed is back in the checkpoint.
#[test]
fn a_training_whose_model_has_changed_goes_back_to_its_checkpoint() {
    let device = &Device::flex().autodiff();
    let layers = || -> Vec<Linear> {
        let layer = |_| LinearConfig::new(4, 4).init(device);
        (0..2).map(layer).collect()
    };
    let step = |fused: &mut FusedOptimizer<Vec<Linear>>| {
        fused.step_ok(0.1, |layers| {
            let x = Tensor::<2>::ones([3, 4], device);
            let x = layers.iter().fold(x, |x, layer| layer.forward(x));
            x.powi_scalar(2).sum()
        });
    };
    let clipping = GlobalNormClippingConfig::Lagged(0.5);
    let config = FusedConfig::clipping(clipping);
    let mut fused =
        FusedOptimizer::new_ok(layers(), AdamWConfig::new().init()).with_config_ok(config.clone());
    step(&mut fused);
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    checkpoint.save(&fused, &Progress::new(1)).unwrap();
    let mut through =
        FusedOptimizer::new_ok(layers(), AdamWConfig::new().init()).with_config_ok(config);
    checkpoint.load::<()>(&mut through).unwrap();

    let whole = fused.model();
    fused.change_model_ok(|mut layers| {
        layers.pop();
        layers
    });
    step(&mut fused);
    fused.change_model_ok(|mut layers| {
        layers.extend(whole.into_iter().skip(1));
        layers
    });
    fused.change_model_ok(|mut layers| {
        let new = LinearConfig::new(4, 4).init(device);
        layers[1] = new;
        layers
    });
    checkpoint.load::<()>(&mut fused).unwrap();
    for _ in 0..3 {
        step(&mut through);
        step(&mut fused);
        assert_eq!(through.last_step().clipping, fused.last_step().clipping);
    }
    assert_equal_weights(&through.model(), &fused.model());
}

/// On a base in codes, and on one that is trained, too.
#[test]
fn adapters_resume_with_their_base() {
    let device = &Device::flex().autodiff();
    let layers = || -> Vec<Linear> {
        let layer = |_| LinearConfig::new(16, 16).init(device);
        (0..2).map(layer).collect()
    };
    let quantized: fn(Vec<Linear>) -> Vec<Linear> = |layers| {
        let scheme = layers.devices()[0].settings().quantization.scheme;
        let mut quantizer = Quantizer::new(Calibration::MinMax, scheme.with_value(QuantValue::Q8S));
        quantizer.set_param_group(ParamGroup::from_predicate("weight"));
        layers.apply_qlora(QLora::new(Lora::new(2, 4.0), quantizer))
    };
    let trained = |layers: Vec<Linear>| layers.apply_lora(Lora::new(2, 4.0)).unfreeze();
    let in_codes = |layers: Vec<Linear>| {
        let lora = QuantizedLora::new(Lora::new(2, 4.0), BaseFormat::Bits4);
        layers.apply_reparameterization(lora)
    };
    let batches: Vec<_> = (0..6)
        .map(|_| Tensor::<2>::random([4, 16], Distribution::Default, device))
        .collect();
    let step = |fused: &mut FusedOptimizer<Vec<Linear>>, x: &Tensor<2>| {
        fused.step_ok(0.1, |layers| {
            let x = layers
                .iter()
                .fold(x.clone(), |x, layer| layer.forward(x).tanh());
            x.powi_scalar(2).sum()
        });
    };
    for adapted in [quantized, trained, in_codes] {
        let fused = || FusedOptimizer::new_ok(adapted(layers()), AdamWConfig::new().init());
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::at(folder.path());
        let mut through = fused();
        batches[..3].iter().for_each(|x| step(&mut through, x));
        checkpoint.save(&through, &Progress::new(3)).unwrap();
        let mut resumed = fused();
        checkpoint.load::<()>(&mut resumed).unwrap();
        assert_equal_weights(&through.model(), &resumed.model());
        for x in &batches[3..] {
            step(&mut through, x);
            step(&mut resumed, x);
        }
        assert_equal_weights(&through.model(), &resumed.model());
        assert_eq!(through.num_retained(), resumed.num_retained());
    }
}

#[test]
fn accumulated_gradients_are_not_left_behind_without_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let loss = |model: &Small| model.weight.val().powi_scalar(2).sum();
    let in_state = optim::AdamWConfig::new().build();
    for mut training in [
        small(),
        FusedOptimizer::accumulating_in_state_ok(Small::init(), in_state),
    ] {
        training.accumulate_ok(loss);
        let refused = checkpoint.save(&training, &Progress::new(1)).unwrap_err();
        assert_eq!(refused, CheckpointError::Accumulated);
        assert!(checkpoint.steps().unwrap().is_empty());
        training.step_ok(0.1, loss);
        checkpoint.save(&training, &Progress::new(1)).unwrap();
        fs::remove_dir_all(folder.path().join("step-1")).unwrap();
    }
}

#[test]
fn the_model_alone_is_loaded_and_outlives_its_file() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 3);
    let record = Checkpoint::at(folder.path()).model().unwrap();
    save_as(folder.path(), 3, 4);
    fs::remove_dir_all(folder.path().join("step-3")).unwrap();
    let model = Small::init().load_record(record);
    assert_equal_weights(&after(3).model(), &model);
}

/// Optimizer states in few bits are written as they are if that is asked for.
#[test]
fn checkpoints_are_compact_if_they_are_to_be() {
    let device = &Device::flex().autodiff();
    let config = optim::AdamWConfig::new().with_state_format(StateFormat::Bits8);
    let fused = || FusedOptimizer::new_ok(Network::init(device), config.init());
    let x = Tensor::<2>::random([5, 61], Distribution::Default, device);
    let mut through = fused();
    plain(&mut through, 0.1.into(), &x);
    let size = |compact: bool| {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::at(folder.path());
        let save = || checkpoint.save(&through, &Progress::new(1));
        match compact {
            true => optim::compact_records(save),
            false => save(),
        }
        .unwrap();
        let mut resumed = fused();
        checkpoint.load::<()>(&mut resumed).unwrap();
        let model = copy(&through.model(), || Network::init(device));
        let mut through_record = FusedOptimizer::new_ok(model, config.init());
        through_record.load_record_ok(optim::compact_records(|| through.to_record()));
        let mut through = through_record;
        plain(&mut through, 0.1.into(), &x);
        plain(&mut resumed, 0.1.into(), &x);
        assert_equal_weights(&through.model(), &resumed.model());
        let files = files(folder.path());
        let optimizer = files
            .iter()
            .find(|(name, _)| name.ends_with("optimizer.bpk"));
        optimizer.unwrap().1.len()
    };
    assert!(size(true) * 2 < size(false));
}

/// A model with rows without elements, and a layer.
#[derive(Module, Debug)]
struct Empty {
    rows: Param<Tensor<2>>,
    layer: Linear,
}

#[test]
fn a_parameter_without_elements_is_loaded() {
    let device = Device::flex().autodiff();
    let init = || Empty {
        rows: Param::from_tensor(Tensor::zeros([5, 0], &device)),
        layer: LinearConfig::new(4, 4).init(&device),
    };
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let training = || FusedOptimizer::new_ok(init(), optim::AdamWConfig::new().init());
    let mut saved = training();
    let step = |fused: &mut FusedOptimizer<Empty>| {
        let x = Tensor::<2>::ones([2, 4], &device);
        fused.step_ok(1e-2, |model| {
            model.layer.forward(x).powi_scalar(2).mean() + model.rows.val().sum()
        });
    };
    step(&mut saved);
    checkpoint.save(&saved, &Progress::new(1)).unwrap();
    let mut loaded = training();
    let _: Progress = checkpoint.load(&mut loaded).unwrap();
    // Nothing is in a file any more.
    drop(folder);
    step(&mut saved);
    step(&mut loaded);
    assert_eq!(loaded.last_step().updated, 3);
    let weight = |fused: &FusedOptimizer<Empty>| fused.model().layer.weight.val().into_data();
    weight(&saved).assert_eq(&weight(&loaded), true);
    assert_eq!(loaded.model().rows.val().dims(), [5, 0]);
}
