//! Head and cross entropy in chunks equal Burn's cross entropy of all logits.

mod targets;
mod weights;

use burn::nn::loss::CrossEntropyLossConfig;
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

/// Weights of tokens: positive, negative and zero.
fn token_weights(length: usize, device: &Device) -> Tensor<1> {
    let weights: Vec<f32> = (0..length)
        .map(|at| [0.5, 2.0, 0.0, -0.25, 1.5][at % 5])
        .collect();
    Tensor::from_data(&weights[..], device)
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
    let loss = config().with_chunk_size(5).init();
    let of_layer_in_block = |model: &Bigram, _| {
        let x = model.embedding.forward(text.tokens.clone().unsqueeze());
        let run = |layer: &Linear, x: Tensor<3>| layer.forward(x).tanh();
        let x = gradient_checkpointing(&model.hidden, x, run).squeeze_dim(0);
        loss.forward(model.head.as_ref().unwrap(), x, text.targets.clone())
    };
    assert_trains_as_stock(
        || Bigram::init(HeadKind::WithBias, device),
        4,
        of_layer_in_block,
    );
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
