//! Targets outside of the vocabulary, of other types, and inputs that do not fit.

use burn::tensor::IntDType;

use super::*;

#[test]
fn ignored_targets_may_lie_outside_of_vocabulary() {
    let device = Device::flex().autodiff();
    let model = Bigram::init(HeadKind::WithBias, &device);
    let all = text(12, &device);
    let few = Text {
        tokens: all.tokens.clone().slice(0..7),
        targets: all.targets.clone().slice(0..7),
    };
    let ignored = Tensor::<1, Int>::from_data([-100; 5], &device);
    let padded = Text {
        tokens: all.tokens,
        targets: Tensor::cat(vec![few.targets.clone(), ignored], 0),
    };
    let config = LinearCrossEntropyLossConfig::new().with_chunk_size(5);
    let expected = model.chunked(&config.init(), &few);
    let config = config.with_pad_tokens(Some(vec![-100]));
    let found = model.chunked(&config.init(), &padded);
    assert!((number(&expected) - number(&found)).abs() < 1e-6);
    let (expected, found) = (gradients(&model, &expected), gradients(&model, &found));
    assert_near(&expected, &found, "gradients");
}

#[test]
fn loss_input_that_does_not_fit_is_refused_by_name() {
    let device = Device::flex().autodiff();
    let model = Bigram::init(HeadKind::WithBias, &device);
    let config = LinearCrossEntropyLossConfig::new;
    let targets = |targets: Tensor<1, Int>| Text {
        tokens: text(targets.dims()[0].max(4), &device).tokens.slice(0..4),
        targets,
    };
    let chunked = |targets_are, config: LinearCrossEntropyLossConfig| {
        panic_of(|| model.chunked(&config.init(), &targets(targets_are)))
    };
    let states = Tensor::zeros([0, DIM], &device);
    let none = Tensor::zeros([0], &device);
    let head = model.head.as_ref().unwrap();
    let outside = Tensor::from_data([1, 2, 11, 3], &device);
    // As a signed number it is -1.
    let largest = TensorData::new(vec![3, 1, 2, u64::MAX], [4]);
    let largest = Tensor::from_data(largest, (&device, DType::U64));
    let weights = token_weights(3, &device);
    let few_weights = panic_of(|| model.weighted(&config().init(), &text(4, &device), weights));
    let unsigned = chunked(largest, config().with_pad_tokens(Some(vec![-1])));
    let few_targets = chunked(text(3, &device).targets, config());
    let no_tokens = panic_of(|| config().init().forward(head, states, none));
    let not_one = "is not one of the 11 classes of the head";
    for (message, words) in [
        (few_weights, "there are 4 hidden states and 3 weights"),
        (
            chunked(outside, config()),
            &format!("the target 11 {not_one}"),
        ),
        (unsigned, not_one),
        (few_targets, "there are 4 hidden states and 3 targets"),
        (no_tokens, "the loss of zero tokens is not defined"),
    ] {
        assert_says(&message, words);
    }
    for (config, words) in [
        (config().with_chunk_size(0), "`chunk_size` is 0"),
        (config().with_smoothing(Some(1.5)), "`smoothing` is 1.5"),
        (config().with_soft_cap(Some(0.0)), "`soft_cap` is 0"),
        (config().with_soft_cap(Some(f64::NAN)), "`soft_cap` is NaN"),
        (
            config().with_soft_cap(Some(1e39)),
            "a positive number of f32",
        ),
    ] {
        assert_says(&panic_of(|| config.init()), words);
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn target_outside_of_vocabulary_is_nan_on_device() {
    let device = Device::wgpu(Default::default()).autodiff();
    let initial = Bigram::init(HeadKind::WithBias, &device);
    let mut text = text(4, &device);
    text.targets = Tensor::from_data([1, 2, 11, 3], &device);
    let mut fused = FusedOptimizer::new(initial, SgdConfig::new().init()).unwrap();
    let loss = LinearCrossEntropyLossConfig::new().init();
    let loss = fused
        .step(0.1, |model| model.chunked(&loss, &text))
        .unwrap();
    assert!(number(&loss).is_nan());
    let finite = |data: &burn::tensor::TensorData| data.iter::<f32>().all(f32::is_finite);
    assert!(weights(&fused.model()).iter().all(|(_, data)| finite(data)));
}

#[test]
fn targets_may_be_of_any_integer_type() {
    let device = Device::flex().autodiff();
    let model = Bigram::init(HeadKind::WithBias, &device);
    let text = text(12, &device);
    let config = LinearCrossEntropyLossConfig::new();
    let loss = |dtype, pads| {
        let targets = text.targets.clone().cast(dtype);
        let tokens = text.tokens.clone();
        let config = config.clone().with_pad_tokens(pads);
        number(&model.chunked(&config.init(), &Text { tokens, targets }))
    };
    let all = loss(IntDType::I64, None);
    for dtype in [IntDType::I32, IntDType::I8, IntDType::U8, IntDType::U64] {
        assert_eq!(loss(dtype, None), all, "{dtype:?}");
        // None of them is a class, in any type.
        let others = vec![-100, (1 << 32) + 3, 3 - (1 << 32), 256 + 3];
        let found = loss(dtype, Some(others));
        assert!((found - all).abs() < 1e-6, "{dtype:?}: {found} and {all}");
    }
}
