//! Averages go where the training goes: into clones and parts, through changes of the model and of the config.

use burn::tensor::DType;

use super::*;
use crate::contents::Contents;

#[test]
fn clones_and_parts_average_on_their_own() {
    let initial = Stack::init();
    let xs = batches(4, 8);
    let mut one = fused(&initial, averaging(ema(0.5)));
    one.step(RATE, |model| model.loss(xs[0].clone()));
    one.step(RATE, |model| model.loss(xs[1].clone()));
    let mut other = one.clone();
    let before = one.averaged();
    let kept = weights(&before);
    other.step(RATE, |model| model.loss(xs[2].clone()));
    assert_equal_weights(&before, &one.averaged());
    one.step(RATE, |model| model.loss(xs[2].clone()));
    assert_equal_weights(&one.averaged(), &other.averaged());
    // An averaged model that was kept is that of before.
    assert!(kept == weights(&before));

    let (model, optimizer) = one.into_parts();
    let model = copy(&model, Stack::init);
    let mut again = FusedOptimizer::new(model, optimizer).with_config(averaging(ema(0.5)));
    // An optimizer of another training holds its averages, until a config asks for some.
    again.step(RATE, |model| model.loss(xs[3].clone()));
    assert_equal_weights(&again.model(), &again.averaged());
}

#[test]
fn averages_outlive_freezing_and_other_changes_of_the_model() {
    let initial = Stack::init();
    let xs = batches(6, 8);
    let frozen = ParamGroup::from_predicate("layers.1");
    let mut one = fused(&initial, averaging(ema(0.5)));
    for x in &xs[..3] {
        one.step(RATE, |model| model.loss(x.clone()));
    }
    let of_frozen = one.averaged().layers[1].weight.val().into_data();
    one.change_model(|model| model.freeze_group(frozen.clone()));
    one.step(RATE, |model| model.loss(xs[3].clone()));
    one.change_model(Stack::unfreeze);
    let again = one.averaged().layers[1].weight.val().into_data();
    again.assert_eq(&of_frozen, true);
    one.step(RATE, |model| model.loss(xs[4].clone()));

    // A layer that is gone takes its average along; one of the same id begins anew.
    let mut gone = None;
    one.change_model(|mut model| {
        gone = model.layers.pop();
        model
    });
    one.step(RATE, |model| model.loss(xs[5].clone()));
    one.change_model(|mut model| {
        model.layers.extend(gone);
        model
    });
    let [value, average] = [one.model(), one.averaged()].map(|model| model.layers[2].weight.val());
    value.into_data().assert_eq(&average.into_data(), true);
    let [value, average] = [one.model(), one.averaged()].map(|model| model.layers[0].weight.val());
    assert_ne!(value.into_data(), average.into_data());
    one.step(RATE, |model| model.loss(xs[5].clone()));
}

#[test]
fn only_what_is_asked_for_is_averaged_and_no_longer_than_it_is() {
    let initial = Stack::init();
    let xs = batches(4, 8);
    let some = ema(0.5).with_parameters(vec!["layers.0".into(), "bias".into()]);
    let mut one = fused(&initial, averaging(some));
    for x in &xs {
        one.step(RATE, |model| model.loss(x.clone()));
    }
    let differ = |path: &str| {
        let all = [one.model(), one.averaged()].map(|model| weights(&model));
        let of = |weights: &[(String, _)]| weights.iter().position(|(found, _)| found == path);
        let place = of(&all[0]).unwrap();
        all[0][place].1 != all[1][place].1
    };
    assert!(differ("layers.0.weight") && differ("layers.2.bias"));
    assert!(!differ("layers.1.weight"));

    one.set_config(FusedConfig::new());
    assert_equal_weights(&one.model(), &one.averaged());
    one.set_config(averaging(ema(0.5)));
    // They begin anew.
    assert_equal_weights(&one.model(), &one.averaged());
    one.step(RATE, |model| model.loss(xs[0].clone()));
    let record = one.to_record();
    one.load_record(record);
}

#[test]
fn what_is_not_asked_for_any_more_begins_anew_when_it_is() {
    let xs = batches(6, 8);
    let some = |part: &str| averaging(ema(0.5).with_parameters(vec![part.into()]));
    let mut one = fused(&Stack::init(), some("layers.0"));
    let train = |one: &mut FusedOptimizer<Stack>, range: std::ops::Range<usize>| {
        for x in &xs[range] {
            one.step(RATE, |model| model.loss(x.clone()));
        }
    };
    train(&mut one, 0..3);
    one.set_config(some("layers.1"));
    // Not in records either.
    let tensors = Contents::of(one.to_record()).tensors.into_iter();
    assert_eq!(
        tensors.filter(|it| it.name.ends_with(".average")).count(),
        0
    );
    train(&mut one, 3..6);
    one.set_config(some("layers"));
    let of = |model: Stack, layer: usize| model.layers[layer].weight.val().into_data();
    assert_eq!(of(one.model(), 0), of(one.averaged(), 0));
    assert_ne!(of(one.model(), 1), of(one.averaged(), 1));
}

#[test]
fn an_average_of_a_parameter_that_has_come_to_f64_is_in_f64() {
    let xs = batches(6, 8);
    let optimizer = optim::AdamWConfig::new().init();
    let mut one = FusedOptimizer::new(Stack::init(), optimizer).with_config(averaging(ema(0.5)));
    for x in &xs[..3] {
        one.step(RATE, |model| model.loss(x.clone()));
    }
    one.change_model(|model| cast(model, FloatDType::F64));
    let mut mean = one.averaged();
    for x in &xs[3..] {
        let x = Tensor::from_inner(x.clone().inner().cast(FloatDType::F64));
        one.step(RATE, |model| model.loss(x));
        mean = next(mean, &one.model(), |mean, value| mean * 0.5 + value * 0.5);
    }
    assert_equal_weights(&mean, &one.averaged());
}

#[test]
fn an_average_that_another_config_has_begun_is_kept_as_this_one_says() {
    let width = 80;
    let initial = Stack::of_width(width);
    let xs = batches(3, width);
    let optimizer = || optim::AdamWConfig::new().init();
    let config = |format| averaging(ema(0.5).with_format(format));
    let types = |fused: &FusedOptimizer<Stack>| -> Vec<DType> {
        let tensors = Contents::of(fused.to_record()).tensors.into_iter();
        let averages =
            tensors.filter(|it| it.name.ends_with(".average") && it.shape.num_dims() == 2);
        averages.map(|it| it.dtype).collect()
    };
    let formats = [
        (WeightFormat::Plain, DType::F32),
        (WeightFormat::Split32, DType::BF16),
        (WeightFormat::Stochastic, DType::BF16),
    ];
    for (from, before) in formats {
        for (to, after) in formats {
            let model = copy(&initial, || Stack::of_width(width));
            let mut fused = FusedOptimizer::new(model, optimizer()).with_config(config(from));
            fused.step(RATE, |model| model.loss(xs[0].clone()));
            assert_eq!(types(&fused), [before; 3]);
            // By a config that is set, and by a record that is loaded.
            let model = copy(&fused.model(), || Stack::of_width(width));
            let mut loaded = FusedOptimizer::new(model, optimizer()).with_config(config(to));
            loaded.load_record(fused.to_record());
            fused.set_config(config(to));
            for mut fused in [fused, loaded] {
                let kept = fused.averaged();
                fused.step(RATE, |model| model.loss(xs[1].clone()));
                assert_eq!(types(&fused), [after; 3], "{from:?} {to:?}");
                let expected = next(kept, &fused.model(), |mean, value| mean * 0.5 + value * 0.5);
                let [expected, found] =
                    [expected, fused.averaged()].map(|model| model.layers[1].weight.val().inner());
                let error = (expected - found).abs().max().into_scalar::<f32>();
                // Of a bf16, and of one that has all its bits.
                let most = if to == WeightFormat::Stochastic {
                    2e-3
                } else {
                    1e-7
                };
                assert!(error <= most, "{from:?} {to:?}: {error}");
            }
        }
    }
}
