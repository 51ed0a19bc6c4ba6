//! Weights of tokens and classes, reductions, and half types equal a composition of Burn's operations.

use burn::nn::Initializer;
use burn::tensor::activation::log_softmax;

use super::*;

/// Computes the loss of all logits in operations of Burn.
fn composed(
    model: &Bigram,
    text: &Text,
    config: &LinearCrossEntropyLossConfig,
    weights: Option<Tensor<1>>,
) -> Tensor<1> {
    let logits = model.logits(text.tokens.clone()).cast(FloatDType::F32);
    let logits = capped(logits, config);
    let all = log_softmax(logits, 1);
    let [tokens, classes] = all.dims();
    let index = text.targets.clone().reshape([tokens, 1]);
    let of_targets = all.clone().gather(1, index).reshape([tokens]);
    let log_likelihoods = match config.smoothing {
        None => of_targets,
        Some(share) => {
            let of_all = all.sum_dim(1).reshape([tokens]);
            of_targets.mul_scalar(1.0 - share) + of_all.mul_scalar(share / classes as f32)
        }
    };
    let padding = match &config.pad_tokens {
        None => text.targets.clone().lower_scalar(0),
        Some(pads) => text.targets.clone().equal_scalar(pads[0]),
    };
    let losses = log_likelihoods.neg().mask_fill(padding.clone(), 0);
    let weights = weights.unwrap_or_else(|| Tensor::ones([tokens], &losses.device()));
    let weights = weights.cast(FloatDType::F32).mask_fill(padding, 0);
    let losses = losses * weights.clone();
    match config.reduction {
        LossReduction::Mean => losses.sum() / weights.sum(),
        LossReduction::Sum => losses.sum(),
        LossReduction::None => losses,
    }
}

/// Compares the loss of all logits and in chunks, with and without weights.
#[track_caller]
fn assert_match_composition(model: &Bigram, config: &LinearCrossEntropyLossConfig) {
    const TOKENS: usize = 23;
    let device = &model.embedding.weight.device();
    let text = text(TOKENS, device);
    let values = |loss: &Tensor<1>| loss.to_data().iter::<f32>().collect::<Vec<_>>();
    // Gradients of single losses differ.
    let squares = |loss: Tensor<1>| loss.powi_scalar(2).sum();
    for weights in [None, Some(token_weights(TOKENS, device))] {
        let expected = composed(model, &text, config, weights.clone());
        let of_expected = gradients(model, &squares(expected.clone()));
        for chunk_size in [TOKENS, 5, 1] {
            let loss = config.clone().with_chunk_size(chunk_size).init();
            let found = model.loss(&loss, &text, weights.clone());
            let case = format!("{loss:?}, weights: {}", weights.is_some());
            assert_eq!(found.dims(), expected.dims(), "{case}");
            assert_eq!(values(&found), values(&expected), "{case}");
            let of_found = gradients(model, &squares(found));
            match chunk_size {
                // One chunk has the same order of sums.
                TOKENS => assert_eq!(of_found, of_expected, "{case}"),
                _ => assert_relative(&of_expected, &of_found, &case),
            }
        }
    }
}

#[test]
fn loss_reductions_and_weights_equal_composition() {
    let device = Device::flex().autodiff();
    let config = LinearCrossEntropyLossConfig::new;
    for config in [
        config(),
        config().with_pad_tokens(Some(vec![3])),
        config().with_smoothing(Some(0.1)).with_soft_cap(Some(2.0)),
    ] {
        for reduction in [LossReduction::Mean, LossReduction::Sum, LossReduction::None] {
            let config = config.clone().with_reduction(reduction);
            for kind in [HeadKind::Tied, HeadKind::WithBias] {
                assert_match_composition(&Bigram::init(kind, &device), &config);
            }
        }
    }
}

/// Asserts differences within 1e-6 of the largest number.
#[track_caller]
fn assert_relative(one: &[f32], other: &[f32], what: &str) {
    let largest = one.iter().fold(1.0f32, |most, it| most.max(it.abs()));
    let scaled = |all: &[f32]| all.iter().map(|it| it / largest).collect::<Vec<_>>();
    assert_near(&scaled(one), &scaled(other), what);
}

#[test]
fn loss_with_class_weights_equals_burn_to_bit() {
    let device = Device::flex().autodiff();
    let text = text(300, &device);
    let of_classes: Vec<f32> = (1..=CLASSES).map(|class| class as f32 / 3.0).collect();
    for kind in [HeadKind::Tied, HeadKind::WithBias] {
        let model = Bigram::init(kind, &device);
        for (pads, weighted) in [
            (None, false),
            (Some(3), false),
            (None, true),
            (Some(3), true),
        ] {
            let whole = CrossEntropyLossConfig::new()
                .with_weights(weighted.then(|| of_classes.clone()))
                .with_pad_tokens(pads.map(|pad| vec![pad as usize]))
                .init(&device)
                .forward(model.logits(text.tokens.clone()), text.targets.clone());
            let config = LinearCrossEntropyLossConfig::new().with_chunk_size(64);
            let loss = config.with_pad_tokens(pads.map(|pad| vec![pad])).init();
            let weights = Tensor::<1>::from_data(&of_classes[..], &device);
            let weights = weights.gather(0, text.targets.clone());
            let chunked = model.loss(&loss, &text, weighted.then_some(weights));
            assert_eq!(number(&whole), number(&chunked));
            let (whole, chunked) = (gradients(&model, &whole), gradients(&model, &chunked));
            assert_near(&whole, &chunked, "gradients");
        }
    }
}

#[test]
fn loss_weights_of_zero_give_nan_mean_and_zero_sum() {
    let device = Device::flex().autodiff();
    let model = Bigram::init(HeadKind::WithBias, &device);
    let text = text(6, &device);
    let loss = |reduction| {
        let config = LinearCrossEntropyLossConfig::new().with_reduction(reduction);
        let weights = Tensor::zeros([6], &device);
        model.weighted(&config.init(), &text, weights)
    };
    assert!(number(&loss(LossReduction::Mean)).is_nan());
    let sum = loss(LossReduction::Sum);
    assert_eq!(number(&sum), 0.0);
    assert!(gradients(&model, &sum).iter().all(|it| *it == 0.0));

    // The weights of padding have no effect.
    let mut text = text;
    text.targets = Tensor::full([6], -100, &device);
    let config = LinearCrossEntropyLossConfig::new().with_pad_tokens(Some(vec![-100]));
    let loss = model.weighted(&config.init(), &text, token_weights(6, &device));
    assert!(number(&loss).is_nan());
    assert!(gradients(&model, &loss).iter().all(|it| *it == 0.0));
}

#[test]
fn loss_of_model_in_bf16_is_in_f32() {
    let device = Device::flex().autodiff();
    let model = cast(Bigram::init(HeadKind::Plain, &device), FloatDType::BF16).unwrap();
    let text = text(10, &device);
    let config = LinearCrossEntropyLossConfig::new().with_chunk_size(10);
    for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F64] {
        let weights = token_weights(10, &device).mul_scalar(0.1).cast(dtype);
        let expected = composed(&model, &text, &config, Some(weights.clone()));
        let found = model.weighted(&config.init(), &text, weights);
        assert_eq!(found.dtype(), DType::F32);
        assert_eq!(number(&found), number(&expected), "{dtype:?}");
        let (expected, found) = (gradients(&model, &expected), gradients(&model, &found));
        assert_eq!(expected, found, "{dtype:?}");
    }
    let expected = number(&composed(&model, &text, &config, None));
    let loss = config.with_chunk_size(7).init();
    assert_eq!(number(&model.chunked(&loss, &text)), expected);
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
    let found = fused
        .step(0.1, |model| model.chunked(&loss, &text))
        .unwrap();
    assert_eq!(number(&found), expected);
}

/// 1024 equal terms: in bf16 their sum stops growing after 256.
#[test]
fn gradient_of_head_in_bf16_is_summed_in_f32_on_request() {
    let device = Device::flex().autodiff();
    let head = LinearConfig::new(1, 2).with_initializer(Initializer::Zeros);
    let head = head.with_bias(false).init(&device);
    let head = cast(head, FloatDType::BF16).unwrap();
    let hidden = Tensor::<2>::ones([1024, 1], &device).cast(FloatDType::BF16);
    let targets = Tensor::<1, Int>::zeros([1024], &device);
    let config = LinearCrossEntropyLossConfig::new().with_chunk_size(1);
    let loss = config.init();
    let moved = [false, true].map(|in_f32| {
        let config = FusedConfig::new().with_full_precision_accumulation(in_f32);
        let fused = FusedOptimizer::new(head.clone(), SgdConfig::new().init()).unwrap();
        let mut fused = fused.with_config(config).unwrap();
        fused
            .step(1.0, |head| {
                loss.forward(head, hidden.clone(), targets.clone())
            })
            .unwrap();
        let weight = fused.model().weight.val().inner().into_data();
        weight.iter::<f32>().next().unwrap()
    });
    assert_eq!(moved, [0.125, 0.5]);
}
