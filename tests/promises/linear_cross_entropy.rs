//! Head and cross entropy in chunks give what Burn's cross entropy of all logits gives.

use burn::nn::Initializer;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::IntDType;
use burn::tensor::activation::log_softmax;
use proptest::prelude::*;

use crate::backends::on_every_backend;
use crate::common::*;

const CLASSES: usize = 11;
const DIM: usize = 6;

/// Tokens become states, and states logits of the next token.
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

    fn weighted(
        &self,
        loss: &LinearCrossEntropyLoss,
        text: &Text,
        weights: Tensor<1>,
    ) -> Tensor<1> {
        let (states, targets) = (self.states(text.tokens.clone()), text.targets.clone());
        match &self.head {
            Some(head) => loss.forward_weighted(head, states, targets, weights),
            None => loss.forward_weighted(&self.embedding, states, targets, weights),
        }
    }

    fn chunked(&self, loss: &LinearCrossEntropyLoss, text: &Text) -> Tensor<1> {
        let states = self.states(text.tokens.clone());
        match &self.head {
            Some(head) => loss.forward(head, states, text.targets.clone()),
            None => loss.forward(&self.embedding, states, text.targets.clone()),
        }
    }
}

struct Text {
    tokens: Tensor<1, Int>,
    targets: Tensor<1, Int>,
}

/// Tokens and what follows on them; all classes, if there are enough of them.
fn text(length: usize, device: &Device) -> Text {
    let token = |index: usize| ((index * 7 + index / 5) % CLASSES) as i64;
    let text: Vec<i64> = (0..length + 1).map(token).collect();
    Text {
        tokens: Tensor::from_data(&text[..length], device),
        targets: Tensor::from_data(&text[1..], device),
    }
}

/// Gradients of all weights, of `loss` on `model` in stock Burn.
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

/// Soft cap aside, which Burn's loss does not have.
fn reference(
    model: &Bigram,
    text: &Text,
    config: &LinearCrossEntropyLossConfig,
    device: &Device,
) -> Tensor<1> {
    let logits = model.logits(text.tokens.clone());
    let logits = match config.soft_cap {
        None => logits,
        Some(cap) => logits.div_scalar(cap).tanh().mul_scalar(cap),
    };
    let pads = config.pad_tokens.clone();
    CrossEntropyLossConfig::new()
        .with_pad_tokens(pads.map(|pads| pads.into_iter().map(|pad| pad as usize).collect()))
        .with_smoothing(config.smoothing)
        .init(device)
        .forward(logits, text.targets.clone())
}

fn kinds() -> impl Strategy<Value = HeadKind> {
    prop_oneof![
        Just(HeadKind::Tied),
        Just(HeadKind::Plain),
        Just(HeadKind::WithBias),
        Just(HeadKind::InColumns)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn loss_and_gradients_are_those_of_burn_over_whole_logits(
        kind in kinds(),
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
        let whole = reference(&model, &text, &config, &device);
        let chunked = model.chunked(&config.init(), &text);
        prop_assert_eq!(whole.dims(), chunked.dims());
        let (expected, found) = (number(&whole), number(&chunked));
        if expected.is_nan() {
            // No token counts.
            prop_assert!(found.is_nan());
            return Ok(());
        }
        prop_assert!((expected - found).abs() <= 1e-6 * expected.abs().max(1.0), "{} and {}", expected, found);
        assert_near(&gradients(&model, &whole), &gradients(&model, &chunked), "gradients");
    }
}

#[test]
fn the_loss_is_that_of_burn_to_the_bit() {
    let device = Device::flex().autodiff();
    for kind in [HeadKind::Tied, HeadKind::WithBias] {
        let model = Bigram::init(kind, &device);
        let text = text(300, &device);
        for pads in [None, Some(vec![3])] {
            let config = LinearCrossEntropyLossConfig::new().with_pad_tokens(pads);
            let whole = reference(&model, &text, &config, &device);
            let config = config.with_chunk_size(64);
            assert_eq!(
                number(&whole),
                number(&model.chunked(&config.init(), &text))
            );
        }
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
    let mut fused = FusedOptimizer::new_ok(copy(&initial, &init), adamw());
    train_fused(&mut fused, steps, 1e-2, &loss);
    assert_equal_weights(&stock, &fused.model());
    assert_changed(&initial, &fused.model(), |_| true);
}

fn fused_equals_stock_in_chunks(device: &Device) {
    for kind in [HeadKind::Tied, HeadKind::WithBias] {
        let text = text(10, device);
        // In two chunks: what is added up of two has no order. A tied weight has a third.
        let size = if kind == HeadKind::Tied { 10 } else { 5 };
        let config = LinearCrossEntropyLossConfig::new().with_chunk_size(size);
        let loss = config
            .with_smoothing(Some(0.1))
            .with_soft_cap(Some(5.0))
            .init();
        let loss = |model: &Bigram, _| model.chunked(&loss, &text);
        assert_trains_as_stock(|| Bigram::init(kind, device), 4, loss);
    }
}

fn chunks_and_policies_go_together(device: &Device) {
    let initial = Bigram::init(HeadKind::WithBias, device);
    let text = text(10, device);
    let train = |chunk_size| {
        let model = copy(&initial, || Bigram::init(HeadKind::WithBias, device));
        let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init())
            .with_config_ok(FusedConfig::exact(0.1));
        let config = LinearCrossEntropyLossConfig::new().with_chunk_size(chunk_size);
        let loss = config.init();
        for _ in 0..3 {
            fused.accumulate_ok(|model| model.chunked(&loss, &text));
            fused.step_repeatable_ok(0.5, |model| model.chunked(&loss, &text));
        }
        fused.model()
    };
    assert_near_weights(&train(10), &train(3), 1e-4, 0.0);
}

fn weighted_loss_equals_stock(device: &Device) {
    let init = || Bigram::init(HeadKind::WithBias, device);
    let text = text(10, device);
    let weights = token_weights(10, device);
    for reduction in [LossReduction::Mean, LossReduction::Sum, LossReduction::None] {
        let config = LinearCrossEntropyLossConfig::new().with_chunk_size(5);
        let config = config.with_pad_tokens(Some(vec![3]));
        let loss = config.with_reduction(reduction).init();
        let loss = |model: &Bigram, _| model.weighted(&loss, &text, weights.clone()).mean();
        assert_trains_as_stock(init, 3, loss);
    }
}

on_every_backend!(
    fused_equals_stock_in_chunks,
    chunks_and_policies_go_together,
    weighted_loss_equals_stock
);

/// Weights of tokens: positive, negative and zero.
fn token_weights(length: usize, device: &Device) -> Tensor<1> {
    let weights: Vec<f32> = (0..length)
        .map(|at| [0.5, 2.0, 0.0, -0.25, 1.5][at % 5])
        .collect();
    Tensor::from_data(&weights[..], device)
}

/// The loss of whole logits in operations of Burn.
fn composed(
    model: &Bigram,
    text: &Text,
    config: &LinearCrossEntropyLossConfig,
    weights: Option<Tensor<1>>,
) -> Tensor<1> {
    let logits = model.logits(text.tokens.clone()).cast(FloatDType::F32);
    let logits = match config.soft_cap {
        None => logits,
        Some(cap) => logits.div_scalar(cap).tanh().mul_scalar(cap),
    };
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

#[test]
fn reductions_and_weights_match_the_composition() {
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
                let model = Bigram::init(kind, &device);
                assert_match_the_composition(&model, &config, None);
                let weights = token_weights(TOKENS, &device);
                assert_match_the_composition(&model, &config, Some(weights));
            }
        }
    }
}

const TOKENS: usize = 23;

fn assert_match_the_composition(
    model: &Bigram,
    config: &LinearCrossEntropyLossConfig,
    weights: Option<Tensor<1>>,
) {
    let text = text(TOKENS, &model.embedding.weight.device());
    let expected = composed(model, &text, config, weights.clone());
    let values = |loss: &Tensor<1>| loss.to_data().iter::<f32>().collect::<Vec<_>>();
    // Gradients of single losses differ.
    let squares = |loss: Tensor<1>| loss.powi_scalar(2).sum();
    let of_expected = gradients(model, &squares(expected.clone()));
    for chunk_size in [TOKENS, 5, 1] {
        let loss = config.clone().with_chunk_size(chunk_size).init();
        let found = match weights.clone() {
            Some(weights) => model.weighted(&loss, &text, weights),
            None => model.chunked(&loss, &text),
        };
        let case = format!("{loss:?}, weights: {}", weights.is_some());
        let is_reduced = config.reduction != LossReduction::None;
        assert_eq!(
            found.dims(),
            [if is_reduced { 1 } else { TOKENS }],
            "{case}"
        );
        assert_eq!(values(&found), values(&expected), "{case}");
        let of_found = gradients(model, &squares(found));
        match chunk_size {
            // One chunk has the same order of sums.
            TOKENS => assert_eq!(of_found, of_expected, "{case}"),
            _ => assert_relative(&of_expected, &of_found, &case),
        }
    }
}

/// Within 1e-6 of the largest.
#[track_caller]
fn assert_relative(one: &[f32], other: &[f32], what: &str) {
    let largest = one.iter().fold(1.0f32, |most, it| most.max(it.abs()));
    let scaled = |all: &[f32]| all.iter().map(|it| it / largest).collect::<Vec<_>>();
    assert_near(&scaled(one), &scaled(other), what);
}

#[test]
fn class_weights_of_targets_match_burn() {
    let device = Device::flex().autodiff();
    let model = Bigram::init(HeadKind::WithBias, &device);
    let text = text(40, &device);
    let of_classes: Vec<f32> = (1..=CLASSES).map(|class| class as f32 / 3.0).collect();
    let weights = Tensor::<1>::from_data(&of_classes[..], &device);
    let weights = weights.gather(0, text.targets.clone());
    for pads in [None, Some(vec![3])] {
        let burn = CrossEntropyLossConfig::new()
            .with_weights(Some(of_classes.clone()))
            .with_pad_tokens(pads.clone())
            .init(&device)
            .forward(model.logits(text.tokens.clone()), text.targets.clone());
        let pads = pads.map(|pads| pads.into_iter().map(|pad| pad as i64).collect());
        let config = LinearCrossEntropyLossConfig::new().with_pad_tokens(pads);
        let found = model.weighted(&config.with_chunk_size(7).init(), &text, weights.clone());
        assert_eq!(number(&found), number(&burn));
        let (burn, found) = (gradients(&model, &burn), gradients(&model, &found));
        assert_near(&burn, &found, "gradients");
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

    // The weights of padding don't count.
    let mut text = text;
    text.targets = Tensor::full([6], -100, &device);
    let config = LinearCrossEntropyLossConfig::new().with_pad_tokens(Some(vec![-100]));
    let loss = model.weighted(&config.init(), &text, token_weights(6, &device));
    assert!(number(&loss).is_nan());
    assert!(gradients(&model, &loss).iter().all(|it| *it == 0.0));
}

#[test]
fn weights_of_a_model_in_bf16_are_applied_in_f32() {
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
}

#[test]
fn probabilities_of_a_model_in_bf16_are_in_f32() {
    let device = Device::flex().autodiff();
    let model = cast(Bigram::init(HeadKind::Plain, &device), FloatDType::BF16).unwrap();
    let text = text(30, &device);
    let logits = model.logits(text.tokens.clone()).cast(FloatDType::F32);
    let whole = CrossEntropyLossConfig::new().init(&device);
    let whole = whole.forward(logits, text.targets.clone());
    let config = LinearCrossEntropyLossConfig::new().with_chunk_size(7);
    let chunked = model.chunked(&config.init(), &text);
    assert_eq!(chunked.dtype(), DType::F32);
    assert_eq!(number(&whole), number(&chunked));
    let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init());
    let loss = fused.step_ok(0.1, |model| model.chunked(&config.init(), &text));
    assert_eq!(number(&whole), number(&loss));
}

/// 1024 equal terms: in bf16 their sum stays what it is after 256.
#[test]
fn the_gradient_of_a_head_in_bf16_can_be_summed_in_f32() {
    let device = Device::flex().autodiff();
    let head = LinearConfig::new(1, 2).with_initializer(Initializer::Zeros);
    let head = || {
        cast(
            head.clone().with_bias(false).init(&device),
            FloatDType::BF16,
        )
        .unwrap()
    };
    let hidden = Tensor::<2>::ones([1024, 1], &device).cast(FloatDType::BF16);
    let targets = Tensor::<1, Int>::zeros([1024], &device);
    let config = LinearCrossEntropyLossConfig::new().with_chunk_size(1);
    let loss = config.init();
    let moved = |mut fused: FusedOptimizer<Linear>| {
        fused.step_ok(1.0, |head| {
            loss.forward(head, hidden.clone(), targets.clone())
        });
        let weight = fused.model().weight.val().inner().into_data();
        weight.iter::<f32>().next().unwrap()
    };
    let fused = || FusedOptimizer::new_ok(head(), SgdConfig::new().init());
    let in_bf16 = moved(fused());
    let in_f32 =
        moved(fused().with_config_ok(FusedConfig::new().with_full_precision_accumulation(true)));
    assert_eq!((in_bf16, in_f32), (0.125, 0.5));
}

#[test]
fn ignored_targets_may_lie_outside_of_the_vocabulary() {
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
    assert_near(
        &gradients(&model, &expected),
        &gradients(&model, &found),
        "gradients",
    );
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
    // Read as a number with a sign it is -1.
    let largest = TensorData::new(vec![3, 1, 2, u64::MAX], [4]);
    let largest = Tensor::from_data(largest, (&device, DType::U64));
    let weights = token_weights(3, &device);
    for (message, words) in [
        (
            panic_of(|| model.weighted(&config().init(), &text(4, &device), weights)),
            "there are 4 hidden states and 3 weights",
        ),
        (
            chunked(outside, config()),
            "the target 11 is not one of the 11 classes of the head",
        ),
        (
            chunked(largest, config().with_pad_tokens(Some(vec![-1]))),
            "is not one of the 11 classes",
        ),
        (
            chunked(text(3, &device).targets, config()),
            "there are 4 hidden states and 3 targets",
        ),
        (
            panic_of(|| config().init().forward(head, states, none)),
            "the loss of zero tokens is not defined",
        ),
        (
            panic_of(|| config().with_chunk_size(0).init()),
            "`chunk_size` is 0",
        ),
        (
            panic_of(|| config().with_smoothing(Some(1.5)).init()),
            "`smoothing` is 1.5",
        ),
        (
            panic_of(|| config().with_soft_cap(Some(0.0)).init()),
            "`soft_cap` is 0",
        ),
        (
            panic_of(|| config().with_soft_cap(Some(f64::NAN)).init()),
            "`soft_cap` is NaN",
        ),
    ] {
        assert_says(&message, words);
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn a_target_outside_of_the_vocabulary_is_nan_on_a_device() {
    let device = Device::wgpu(Default::default()).autodiff();
    let initial = Bigram::init(HeadKind::WithBias, &device);
    let mut text = text(4, &device);
    text.targets = Tensor::from_data([1, 2, 11, 3], &device);
    let mut fused = FusedOptimizer::new_ok(initial, SgdConfig::new().init());
    let loss = LinearCrossEntropyLossConfig::new().init();
    let loss = fused.step_ok(0.1, |model| model.chunked(&loss, &text));
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
        // None of them, in whatever type.
        let others = vec![-100, (1 << 32) + 3, 3 - (1 << 32), 256 + 3];
        let found = loss(dtype, Some(others));
        assert!((found - all).abs() < 1e-6, "{dtype:?}: {found} and {all}");
    }
}
