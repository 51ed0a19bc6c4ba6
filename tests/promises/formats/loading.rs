//! Records in one float type, loaded into a model in another.

use std::sync::atomic::{AtomicBool, Ordering};

use burn::store::{ModuleSnapshot, SafetensorsStore};

use super::*;

on_every_backend!(loaded_weights_equal_cast_weights);

fn loaded_weights_equal_cast_weights(device: &Device) {
    let others = [FloatDType::F64, FloatDType::BF16, FloatDType::F16];
    let others = others.into_iter().filter(|it| device.supports_dtype(*it));
    for dtype in others.chain([FloatDType::F32]) {
        let saved = Network::init(device);
        let record = saved.clone().into_record();
        let loaded = load_record_in(Network::init(device), record, dtype).unwrap();
        let cast = cast(saved, dtype).unwrap();
        assert_eq!(weights(&loaded), weights(&cast));
        // The result is an ordinary model.
        let batches = batches(device, dtype);
        let mut fused = FusedOptimizer::new(loaded, SgdConfig::new().init()).unwrap();
        let mut other = FusedOptimizer::new(cast, SgdConfig::new().init()).unwrap();
        for training in [&mut fused, &mut other] {
            training
                .step(RATE, |model| model.loss(batches[0].clone()))
                .unwrap();
        }
        assert_equal_weights(&other.model(), &fused.model());
    }
}

#[test]
fn adapters_and_frozen_weights_load_as_saved() {
    let device = Device::flex().autodiff();
    let init = || {
        let model = Network::init(&device).apply_lora(Lora::new(2, 4.0));
        model.freeze_group(ParamGroup::from_predicate("second"))
    };
    let saved = init();
    let record = saved.clone().into_record();
    let loaded = load_record_in(init(), record, FloatDType::BF16).unwrap();
    let cast = cast(saved, FloatDType::BF16).unwrap();
    assert_eq!(weights(&loaded), weights(&cast));
    let [found, expected] = [loaded, init()]
        .map(|model| parts(&FusedOptimizer::new(model, SgdConfig::new().init()).unwrap()));
    assert_eq!(found, expected);
}

/// Trains a stock model, whose clones share its running statistics, while `beside` is called with such clones over and
/// over.
fn trained_beside(initial: &Network, x: &Tensor<2>, beside: impl Fn(Network) + Sync) -> Network {
    let device = Device::flex().autodiff();
    let model = copy(initial, || Network::init(&device));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let trainer = scope.spawn(|| {
            for _ in 0..4000 {
                model.norm.forward(model.first.forward(x.clone()));
            }
        });
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                beside(model.clone());
            }
        });
        let trained = trainer.join();
        ends.store(true, Ordering::Relaxed);
        trained.expect("the trainer goes on");
    });
    assert_eq!(model.norm.running_mean.value().dims(), [71]);
    model.valid()
}

fn untrained() -> (Network, Tensor<2>) {
    let device = Device::flex().autodiff();
    let x = Tensor::random([8, 61], Distribution::Default, &device);
    (Network::init(&device), x)
}

#[test]
fn model_cast_during_training_is_only_read() {
    let (initial, x) = untrained();
    let alone = trained_beside(&initial, &x, drop);
    let beside = trained_beside(&initial, &x, |clone| {
        drop(cast(clone, FloatDType::BF16).unwrap())
    });
    assert_equal_weights(&alone, &beside);
}

/// The statistics of a loaded model are then shared by all clones, as in stock Burn, and always have a value.
#[test]
fn model_loaded_during_training_does_not_stop_it() {
    let (initial, x) = untrained();
    trained_beside(&initial, &x, |clone| {
        let record = initial.clone().into_record();
        drop(load_record_in(clone, record, FloatDType::BF16).unwrap());
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved.safetensors");
    let mut store = SafetensorsStore::from_file(&path);
    initial.save_into(&mut store).unwrap();
    trained_beside(&initial, &x, |clone| {
        let store = SafetensorsStore::from_file;
        drop(load_from_store(clone, &path, store, FloatDType::BF16).unwrap());
    });
}

/// A bf16 linear layer, and a gradient. A step of 1 moves a seventh of the weights (all if they are `alike`) halfway
/// between two bf16 numbers, where no weight can stay.
fn halfway(device: &Device, alike: bool) -> (Linear, Tensor<2>) {
    let config = LinearConfig::new(64, 72).with_bias(false);
    let config = match alike {
        true => config.with_initializer(burn::nn::Initializer::Ones),
        false => config,
    };
    let model: Linear = cast(config.init(device), FloatDType::BF16).unwrap();
    let weights = model.weight.val().into_data();
    let steps = weights.iter::<f32>().enumerate().map(|(index, weight)| {
        // Half of the distance to its neighbor.
        let half = f32::from_bits(weight.to_bits() & 0x7f80_0000) / 256.0;
        match index % 7 {
            _ if alike => -half,
            0 => half * if index % 2 == 0 { 1.0 } else { -1.0 },
            _ => half * 0.3,
        }
    });
    let steps = burn::tensor::TensorData::new(steps.collect::<Vec<_>>(), [64, 72]);
    let gradient = Tensor::<2>::from_data(steps, &Device::flex()).cast(FloatDType::BF16);
    (model, Tensor::from_inner(gradient))
}

fn assert_low_bits_are_kept(alike: bool) {
    let device = Device::flex().autodiff();
    let optimizer = optim::SgdConfig::new().with_weight_format(WeightFormat::Split24);
    let optimizer = optimizer.init();
    let (model, gradient) = halfway(&device, alike);
    let step = |fused: &mut FusedOptimizer<Linear>, rate: f64| {
        fused
            .step(rate, |model| (model.weight.val() * gradient.clone()).sum())
            .unwrap();
    };
    let mut through = FusedOptimizer::new(model, optimizer.clone()).unwrap();
    step(&mut through, 1.0);
    let full = through.full_precision_model();
    let record = full.clone().into_record();
    let init = LinearConfig::new(64, 72).with_bias(false).init(&device);
    let models = [
        cast(full.clone(), FloatDType::BF16).unwrap(),
        load_record_in(init, record, FloatDType::BF16).unwrap(),
    ];
    assert_equal_weights(&through.model(), &models[0]);
    let resumed = models.map(|model| {
        let mut resumed = FusedOptimizer::new(model, optimizer.clone()).unwrap();
        resumed.load_record(through.to_record()).unwrap();
        assert_equal_weights(&full, &resumed.full_precision_model());
        step(&mut resumed, 0.1);
        resumed
    });
    step(&mut through, 0.1);
    for resumed in resumed {
        assert_equal_weights(&through.model(), &resumed.model());
        assert_equal_weights(
            &through.full_precision_model(),
            &resumed.full_precision_model(),
        );
    }
}

#[test]
fn full_precision_model_continues_in_bf16_with_low_bits() {
    for alike in [false, true] {
        assert_low_bits_are_kept(alike);
    }
}
