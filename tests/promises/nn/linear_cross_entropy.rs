//! Head and cross entropy in chunks equal Burn's cross entropy of all logits.

use burn::nn::Initializer;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::IntDType;
use burn::tensor::activation::log_softmax;
use proptest::prelude::*;

use crate::common::*;

const CLASSES: usize = 11;
const DIM: usize = 6;

/// A bigram model: tokens are embedded, and the head computes logits of the next token.
#[derive(Module, Debug)]
struct Bigram {
    embedding: Embedding,
    hidden: Linear,
    head: Option<Linear>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum HeadKind {
    Tied,
    Plain,
    WithBias,
    InColumns,
}

const KINDS: [HeadKind; 4] = [
    HeadKind::Tied,
    HeadKind::Plain,
    HeadKind::WithBias,
    HeadKind::InColumns,
];

impl Bigram {
    fn init(kind: HeadKind, device: &Device) -> Self {
        let head = LinearConfig::new(DIM, CLASSES);
        let head = match kind {
            HeadKind::Tied => None,
            HeadKind::Plain => Some(head.with_bias(false)),
            HeadKind::WithBias => Some(head),
            HeadKind::InColumns => Some(head.with_layout(LinearLayout::Col)),
        };
        Self {
            embedding: EmbeddingConfig::new(CLASSES, DIM).init(device),
            hidden: LinearConfig::new(DIM, DIM).init(device),
            head: head.map(|head| head.init(device)),
        }
    }

    fn states(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        let embedded = self.embedding.forward(tokens.unsqueeze()).squeeze_dim(0);
        self.hidden.forward(embedded).tanh()
    }

    fn logits(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        let states = self.states(tokens);
        match &self.head {
            Some(head) => head.logits(states),
            None => self.embedding.logits(states),
        }
    }

    fn loss(
        &self,
        loss: &LinearCrossEntropyLoss,
        text: &Text,
        weights: Option<Tensor<1>>,
    ) -> Tensor<1> {
        let (x, targets) = (self.states(text.tokens.clone()), text.targets.clone());
        match (&self.head, weights) {
            (Some(head), Some(weights)) => loss.forward_weighted(head, x, targets, weights),
            (Some(head), None) => loss.forward(head, x, targets),
            (None, Some(it)) => loss.forward_weighted(&self.embedding, x, targets, it),
            (None, None) => loss.forward(&self.embedding, x, targets),
        }
    }

    fn weighted(&self, loss: &LinearCrossEntropyLoss, text: &Text, by: Tensor<1>) -> Tensor<1> {
        self.loss(loss, text, Some(by))
    }

    fn chunked(&self, loss: &LinearCrossEntropyLoss, text: &Text) -> Tensor<1> {
        self.loss(loss, text, None)
    }
}

struct Text {
    tokens: Tensor<1, Int>,
    targets: Tensor<1, Int>,
}

/// Returns tokens and their next tokens. A long text contains all classes.
fn text(length: usize, device: &Device) -> Text {
    let token = |index: usize| ((index * 7 + index / 5) % CLASSES) as i64;
    let text: Vec<i64> = (0..length + 1).map(token).collect();
    Text {
        tokens: Tensor::from_data(&text[..length], device),
        targets: Tensor::from_data(&text[1..], device),
    }
}

/// Returns the gradients of all weights from `loss` on `model`, in stock Burn.
fn gradients(model: &Bigram, loss: &Tensor<1>) -> Vec<f32> {
    let gradients = GradientsParams::from_grads(loss.backward(), model);
    let head = model.head.iter().map(|head| &head.weight);
    let weights = [&model.embedding.weight, &model.hidden.weight];
    let found = weights.into_iter().chain(head);
    let found = found.filter_map(|weight| gradients.get::<2>(weight.id));
    let elements = |gradient: Tensor<2>| gradient.into_data().iter().collect::<Vec<f32>>();
    found.flat_map(elements).collect()
}

#[track_caller]
fn assert_near(one: &[f32], other: &[f32], what: &str) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        assert!((one - other).abs() <= 1e-6, "{what}: {one} and {other}");
    }
}

fn number(tensor: &Tensor<1>) -> f32 {
    tensor.clone().into_scalar()
}

fn capped(logits: Tensor<2>, config: &LinearCrossEntropyLossConfig) -> Tensor<2> {
    match config.soft_cap {
        None => logits,
        Some(cap) => logits.div_scalar(cap).tanh().mul_scalar(cap),
    }
}

/// Returns Burn's loss of all logits.
fn reference(model: &Bigram, text: &Text, config: &LinearCrossEntropyLossConfig) -> Tensor<1> {
    let logits = capped(model.logits(text.tokens.clone()), config);
    let pads = config.pad_tokens.clone();
    CrossEntropyLossConfig::new()
        .with_pad_tokens(pads.map(|pads| pads.into_iter().map(|pad| pad as usize).collect()))
        .with_smoothing(config.smoothing)
        .init(&text.targets.device())
        .forward(logits, text.targets.clone())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn loss_and_gradients_equal_burn_over_whole_logits(
        kind in proptest::sample::select(&KINDS[..]),
        length in 1usize..40,
        chunk_size in 1usize..50,
        pads in proptest::option::of(proptest::collection::vec(0..CLASSES as i64, 0..3)),
        smoothing in proptest::option::of(0.0f32..=1.0),
        soft_cap in proptest::option::of(0.5f64..30.0),
    ) {
        let device = Device::flex().autodiff();
        let model = Bigram::init(kind, &device);
        let text = text(length, &device);
        let config = LinearCrossEntropyLossConfig::new()
            .with_chunk_size(chunk_size)
            .with_pad_tokens(pads)
            .with_smoothing(smoothing)
            .with_soft_cap(soft_cap);
        let whole = reference(&model, &text, &config);
        let chunked = model.chunked(&config.init(), &text);
        prop_assert_eq!(whole.dims(), chunked.dims());
        let (expected, found) = (number(&whole), number(&chunked));
        if expected.is_nan() {
            // All tokens are padding.
            prop_assert!(found.is_nan());
            return Ok(());
        }
        prop_assert!((expected - found).abs() <= 1e-6 * expected.abs().max(1.0), "{} and {}", expected, found);
        assert_near(&gradients(&model, &whole), &gradients(&model, &chunked), "gradients");
    }
}

fn assert_trains_as_stock(
    init: impl Fn() -> Bigram,
    steps: usize,
    loss: impl Fn(&Bigram, usize) -> Tensor<1>,
) {
    let initial = init();
    let adamw = || AdamWConfig::new().init();
    let stock = train_stock(copy(&initial, &init), &mut adamw(), steps, 1e-2, &loss);
    let mut fused = FusedOptimizer::new(copy(&initial, &init), adamw()).unwrap();
    train_fused(&mut fused, steps, 1e-2, &loss);
    assert_equal_weights(&stock, &fused.model());
    assert_changed(&initial, &fused.model(), |_| true);
}

fn loss_in_chunks_trains_as_stock(device: &Device) {
    let text = text(10, device);
    let config = LinearCrossEntropyLossConfig::new;
    for kind in [HeadKind::Tied, HeadKind::WithBias] {
        // In two chunks, because a sum of two terms has no order. A tied weight has a third term.
        let size = if kind == HeadKind::Tied { 10 } else { 5 };
        let loss = config()
            .with_chunk_size(size)
            .with_smoothing(Some(0.1))
            .with_soft_cap(Some(5.0))
            .init();
        let loss = |model: &Bigram, _| model.chunked(&loss, &text);
        assert_trains_as_stock(|| Bigram::init(kind, device), 4, loss);
    }
    let weights = token_weights(10, device);
    let config = config().with_chunk_size(5).with_pad_tokens(Some(vec![3]));
    for reduction in [LossReduction::Mean, LossReduction::Sum, LossReduction::None] {
        let loss = config.clone().with_reduction(reduction).init();
        let loss = |model: &Bigram, _| model.weighted(&loss, &text, weights.clone()).mean();
        assert_trains_as_stock(|| Bigram::init(HeadKind::WithBias, device), 3, loss);
    }
}

fn loss_in_chunks_clips_and_accumulates_as_whole(device: &Device) {
    let initial = Bigram::init(HeadKind::WithBias, device);
    let text = text(10, device);
    let train = |chunk_size| {
        let model = copy(&initial, || Bigram::init(HeadKind::WithBias, device));
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
            .unwrap()
            .with_config(FusedConfig::exact(0.1))
            .unwrap();
        let config = LinearCrossEntropyLossConfig::new().with_chunk_size(chunk_size);
        let loss = config.init();
        for _ in 0..3 {
            fused
                .accumulate(|model| model.chunked(&loss, &text))
                .unwrap();
            fused
                .step_repeatable(0.5, |model| model.chunked(&loss, &text))
                .unwrap();
        }
        fused.model()
    };
    assert_near_weights(&train(10), &train(3), 1e-4, 0.0);
}

on_every_backend!(
    loss_in_chunks_trains_as_stock,
    loss_in_chunks_clips_and_accumulates_as_whole
);

/// Weights of tokens: positive, negative and zero.
fn token_weights(length: usize, device: &Device) -> Tensor<1> {
    let weights: Vec<f32> = (0..length)
        .map(|at| [0.5, 2.0, 0.0, -0.25, 1.5][at % 5])
        .collect();
    Tensor::from_data(&weights[..], device)
}

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
