//! Records in one float type, loaded into a model in another.

use backburn::load_record_in;
use burn::module::{Lora, ParamGroup};
use burn::nn::LinearLayout;
use burn::store::RecordError;

use super::*;

on_every_backend!(
    what_is_loaded_is_what_would_be_cast,
    a_type_that_the_device_has_not_is_named,
);

fn a_type_that_the_device_has_not_is_named(device: &Device) {
    for dtype in [FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
        let record = Network::init(device).into_record();
        let load =
            std::panic::AssertUnwindSafe(|| load_record_in(Network::init(device), record, dtype));
        match (std::panic::catch_unwind(load), device.supports_dtype(dtype)) {
            (Ok(loaded), true) => drop(loaded.unwrap()),
            (Err(panic), false) => {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                assert!(
                    text.contains(&format!("can't compute in {dtype:?}")),
                    "{text}"
                );
            }
            (loaded, _) => panic!("{dtype:?}: loaded {}", loaded.is_ok()),
        }
    }
}

fn what_is_loaded_is_what_would_be_cast(device: &Device) {
    let dtypes = [FloatDType::BF16, FloatDType::F16, FloatDType::F32];
    for dtype in dtypes
        .into_iter()
        .filter(|dtype| device.supports_dtype(*dtype))
    {
        let saved = Network::init(device);
        let record = saved.clone().into_record();
        let loaded = load_record_in(Network::init(device), record, dtype).unwrap();
        assert_eq!(weights(&loaded), weights(&cast(saved.clone(), dtype)));
        // It is a model like others.
        let sgd = || burn::optim::SgdConfig::new().init();
        let batches = batches(device, dtype);
        let mut fused = FusedOptimizer::new(loaded, sgd());
        let mut other = FusedOptimizer::new(cast(saved, dtype), sgd());
        for training in [&mut fused, &mut other] {
            training.step(RATE, |model| model.loss(batches[0].clone()));
        }
        assert_equal_weights(&other.model(), &fused.model());
    }
}

#[test]
fn adapters_and_frozen_weights_are_loaded_as_such() {
    let device = Device::flex().autodiff();
    let init = || {
        let model = Network::init(&device).apply_lora(Lora::new(2, 4.0));
        model.freeze_group(ParamGroup::from_predicate("second"))
    };
    let saved = init();
    let record = saved.clone().into_record();
    let loaded = load_record_in(init(), record, FloatDType::BF16).unwrap();
    assert_eq!(weights(&loaded), weights(&cast(saved, FloatDType::BF16)));
    let counts = |model| {
        let fused = FusedOptimizer::new(model, burn::optim::SgdConfig::new().init());
        (
            fused.num_released(),
            fused.num_retained(),
            fused.num_frozen(),
        )
    };
    assert_eq!(counts(loaded), counts(init()));
}

#[test]
fn layers_in_columns_are_loaded() {
    let device = Device::flex().autodiff();
    let config = LinearConfig::new(6, 12).with_layout(LinearLayout::Col);
    let saved = config.init(&device);
    let record = saved.clone().into_record();
    let loaded = load_record_in(config.init(&device), record, FloatDType::BF16).unwrap();
    assert_eq!(weights(&loaded), weights(&cast(saved, FloatDType::BF16)));
}

/// Whatever the record allows: a view of one element would be left in its place.
#[test]
fn a_record_that_lacks_a_parameter_is_refused() {
    let device = Device::flex().autodiff();
    let part = || {
        let mut model = Network::init(&device);
        model.second.bias = None;
        model.into_record()
    };
    for record in [part(), part().allow_partial(true).validate(false)] {
        let refused = load_record_in(Network::init(&device), record, FloatDType::BF16);
        let error = refused.map(drop).unwrap_err();
        assert!(
            matches!(&error, RecordError::Validation(text) if text.contains("second.bias")),
            "{error}"
        );
    }
}

#[test]
fn a_record_of_other_shapes_is_refused() {
    let device = Device::flex().autodiff();
    let mut model = Network::init(&device);
    model.first = LinearConfig::new(61, 70).init(&device);
    let record = model.into_record().validate(false);
    let refused = load_record_in(Network::init(&device), record, FloatDType::BF16);
    let error = refused.map(drop).unwrap_err();
    assert!(
        matches!(&error, RecordError::Validation(text) if text.contains("first.weight")),
        "{error}"
    );
}
