//! A layer that was removed returns without the optimizer states that it had.

use backburn::optim as ours;

use super::pruned::{Net, RATE, init, loss, optimizers, with_new_ids, without_last_layer};
use crate::common::*;

fn layer_that_returns_starts_without_state(device: &Device) {
    let initial = init(device);
    let x = Tensor::<2>::random([4, 66], Distribution::Default, device);
    for optimizer in optimizers() {
        let loss = |model: &Net, _| loss(model, x.clone());
        let start = || copy(&initial, || init(device));
        let fused = |model| {
            let fused = FusedOptimizer::new(model, optimizer.clone()).unwrap();
            fused.with_config(FusedConfig::lagged(1e-3)).unwrap()
        };
        let mut first = fused(start());
        train_fused(&mut first, 2, RATE, loss);
        let whole = first.model();
        first.change_model(without_last_layer).unwrap();
        train_fused(&mut first, 1, RATE, loss);
        let record = || first.to_record();
        let back = |mut model: Net| {
            model.push(whole[1].clone());
            model
        };
        let mut expected = fused(copy(&first.model(), || without_last_layer(init(device))));
        expected.load_record(record()).unwrap();
        let (model, optimizer) = expected.into_parts();
        let mut expected = FusedOptimizer::new(back(model), optimizer)
            .unwrap()
            .with_config(FusedConfig::lagged(1e-3))
            .unwrap();
        expected.load_record(record()).unwrap();
        train_fused(&mut expected, 2, RATE, loss);
        first.change_model(back).unwrap();
        train_fused(&mut first, 2, RATE, loss);
        assert_equal_weights(&expected.model(), &first.model());
        assert_eq!(first.load_record(first.to_record()), Ok(()));
    }
}

#[test]
fn layer_that_returns_with_offload_starts_without_state() {
    let [_, device] = &cpus();
    let initial = init(device);
    let x = Tensor::<2>::random([4, 66], Distribution::Default, device);
    let train = |offload: Option<Offload>| {
        let model = copy(&initial, || init(device));
        let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap();
        let step = |fused: &mut FusedOptimizer<Net>| {
            train_fused(fused, 2, RATE, |model, _| loss(model, x.clone()));
        };
        step(&mut fused);
        let offload = offload.map(|offload| OffloadConfig::new(offload).with_min_elements(5));
        let mut fused = fused
            .with_config(FusedConfig::new().with_offload(offload))
            .unwrap();
        let last = fused.model().fork(device).pop();
        fused.change_model(without_last_layer).unwrap();
        step(&mut fused);
        fused
            .change_model(|mut model| {
                model.extend(last);
                model
            })
            .unwrap();
        step(&mut fused);
        let mut fused = fused.with_config(FusedConfig::new()).unwrap();
        step(&mut fused);
        fused.model()
    };
    let expected = train(None);
    for offload in [Offload::States, Offload::Updates] {
        assert_equal_weights(&expected, &train(Some(offload)));
    }
}

/// A layer that returns takes all states through a record, and Burn loads them in f32.
#[test]
fn layer_that_returns_in_another_type_trains_or_is_refused() {
    let device = &flex();
    for (dtype, (optimizer, is_refused)) in product(
        [FloatDType::BF16, FloatDType::F64],
        [
            (AdamWConfig::new().init(), true),
            (ours::AdamWConfig::new().init(), false),
            (SgdConfig::new().init(), false),
        ],
    ) {
        let x = Tensor::<2>::ones([4, 66], device).cast(dtype);
        let loss = |model: &Net, _| loss(model, x.clone());
        let model = cast(init(device), dtype).unwrap();
        let mut fused = FusedOptimizer::new(model, optimizer).unwrap();
        train_fused(&mut fused, 1, RATE, loss);
        let mut layer = fused.model().pop().unwrap();
        fused.change_model(without_last_layer).unwrap();
        train_fused(&mut fused, 1, RATE, loss);
        let with = |layer: &Linear| {
            let layer = layer.clone();
            move |model: Net| [model, vec![layer]].concat()
        };
        let before = weights(&fused.model());
        let wider = |mut model: Net| {
            let weight = model[0].weight.clone();
            let wider = |weight: Tensor<2>| {
                Tensor::cat(vec![weight.clone(), weight], 0)
                    .detach()
                    .require_grad()
            };
            model[0].weight = weight.map(wider);
            model
        };
        if is_refused {
            // The same holds for a shape.
            let error = fused.change_model(wider).unwrap_err();
            assert_matches!(error, FusedError::UnsupportedParameter { path, .. } if path == "0.weight");
            assert_eq!(weights(&fused.model()), before);
        }
        let returned = fused.change_model(with(&layer));
        if is_refused {
            let error = returned.unwrap_err();
            assert_matches!(error, FusedError::UnsupportedParameter { path, .. } if path.starts_with("1."));
            assert_says(&error, "`Param::initialized(ParamId::new(), param.val())`");
            assert_says(&error, "`backburn::optim`");
            assert_eq!(weights(&fused.model()), before);
            train_fused(&mut fused, 1, RATE, loss);
            layer = with_new_ids(&layer);
            fused.change_model(with(&layer)).unwrap();
        } else {
            returned.unwrap();
        }
        train_fused(&mut fused, 2, RATE, loss);
        assert_eq!(fused.last_step().updated, 4);
        assert_eq!(fused.change_model(wider).is_err(), is_refused);
    }
}

/// A training with another config, or another training with the same optimizer, accepts a removed layer again.
#[test]
fn layer_that_returns_to_other_config_or_training_trains() {
    let device = &Device::flex().autodiff();
    let initial = init(device);
    let x = Tensor::<2>::random([4, 66], Distribution::Default, device);
    for optimizer in optimizers() {
        let loss = |model: &Net, _| loss(model, x.clone());
        let train = |between: &dyn Fn(FusedOptimizer<Net>) -> FusedOptimizer<Net>| {
            let start = copy(&initial, || init(device));
            let mut fused = FusedOptimizer::new(start.clone(), optimizer.clone()).unwrap();
            train_fused(&mut fused, 2, RATE, loss);
            fused.change_model(without_last_layer).unwrap();
            train_fused(&mut fused, 1, RATE, loss);
            let mut fused = between(fused);
            fused
                .change_model(|mut model| {
                    model.push(start[1].clone());
                    model
                })
                .unwrap();
            train_fused(&mut fused, 2, RATE, loss);
            assert_eq!(fused.load_record(fused.to_record()), Ok(()));
            fused.model()
        };
        let expected = train(&|fused| fused);
        let config = FusedConfig::new().with_averaging(Some(WeightAveragingConfig::new()));
        let other_config = |fused: FusedOptimizer<Net>| {
            let fused = fused.with_config(config.clone()).unwrap();
            fused.with_config(FusedConfig::new()).unwrap()
        };
        assert_equal_weights(&expected, &train(&other_config));
        let other_training = |fused: FusedOptimizer<Net>| {
            let (model, optimizer) = fused.into_parts();
            FusedOptimizer::new(model, optimizer).unwrap()
        };
        assert_equal_weights(&expected, &train(&other_training));
    }
}

on_every_backend!(layer_that_returns_starts_without_state);
