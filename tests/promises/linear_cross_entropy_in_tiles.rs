//! The loss over tiles of the vocabulary: the gradient of the head is put together from those of the tiles, everywhere.

use backburn::{
    FusedConfig, FusedOptimizer, GlobalNormClippingConfig, Head, LinearCrossEntropyLoss,
    LinearCrossEntropyLossConfig, LossDirection, cast,
};
use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, LinearLayout};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};

use crate::backends::on_every_backend;
use crate::compare::*;

const CLASSES: usize = 11;
const DIM: usize = 6;

/// Tokens become states, and states logits of the next token. Without a head the embedding is one.
#[derive(Module, Debug)]
struct Bigram {
    embedding: Embedding,
    head: Option<Linear>,
}

impl Bigram {
    fn init(head: Option<LinearConfig>, device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(CLASSES, DIM).init(device),
            head: head.map(|head| head.init(device)),
        }
    }

    fn loss(&self, loss: &LinearCrossEntropyLoss) -> Tensor<1> {
        let text: Vec<i64> = (0..14).map(|at| (at * 7 + at / 5) % 11).collect();
        let device = &self.embedding.weight.lazy_device();
        let text = Tensor::<1, Int>::from_data(&text[..], device);
        let states = self
            .embedding
            .forward(text.clone().slice(0..13).unsqueeze());
        let (states, targets) = (states.squeeze_dim::<2>(0).tanh(), text.slice(1..14));
        match &self.head {
            Some(head) => loss.forward(head, states, targets),
            None => loss.forward(&self.embedding, states, targets),
        }
    }
}

fn heads() -> [Option<LinearConfig>; 3] {
    let head = LinearConfig::new(DIM, CLASSES);
    let in_columns = head.clone().with_layout(LinearLayout::Col);
    [None, Some(head), Some(in_columns.with_bias(false))]
}

fn tiles(size: usize) -> LinearCrossEntropyLossConfig {
    let config = LinearCrossEntropyLossConfig::new().with_tile_size(size);
    config.with_direction(Some(LossDirection::Classes))
}

/// Two tiles: the gradients that they have for the hidden states are a sum of two, which has no order.
fn fused_equals_stock_in_tiles(device: &Device) {
    for head in heads() {
        let initial = Bigram::init(head.clone(), device);
        let copy = || copy(&initial, || Bigram::init(head.clone(), device));
        let config = tiles(7).with_smoothing(Some(0.1)).with_soft_cap(Some(5.0));
        let loss = config.init();
        let loss = |model: &Bigram, _| model.loss(&loss);
        let stock = train_stock(copy(), &mut AdamWConfig::new().init(), 4, 1e-2, loss);
        let mut fused = FusedOptimizer::new(copy(), AdamWConfig::new().init());
        train_fused(&mut fused, 4, 1e-2, loss);
        assert_equal_weights(&stock, &fused.model());
        assert_changed(&initial, &fused.model(), |_| true);
    }
}

fn tiles_and_policies_go_together(device: &Device) {
    let initial = Bigram::init(None, device);
    let train = |loss: LinearCrossEntropyLossConfig| {
        let model = copy(&initial, || Bigram::init(None, device));
        let clipping = Some(GlobalNormClippingConfig::Exact(0.1));
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
            .with_config(FusedConfig::new().with_clipping(clipping));
        let loss = loss.init();
        for _ in 0..3 {
            fused.accumulate(|model| model.loss(&loss));
            fused.step_repeatable(0.5, |model| model.loss(&loss));
        }
        weights(&fused.model())
    };
    let chunks = LinearCrossEntropyLossConfig::new().with_direction(Some(LossDirection::Tokens));
    for ((path, whole), (_, tiled)) in train(chunks).into_iter().zip(train(tiles(3))) {
        for (whole, tiled) in whole.iter::<f32>().zip(tiled.iter::<f32>()) {
            assert!(
                (whole - tiled).abs() < 1e-4,
                "`{path}`: {whole} and {tiled}"
            );
        }
    }
}

on_every_backend!(fused_equals_stock_in_tiles, tiles_and_policies_go_together);

/// Loss, and the gradient of all parameters in f64, as those of the step that plain gradient descent makes.
fn of_step(model: Bigram, config: &LinearCrossEntropyLossConfig) -> (f64, Vec<f64>) {
    let numbers = |model: &Bigram| -> Vec<f64> {
        let all = weights(model).into_iter();
        all.flat_map(|(_, data)| data.iter::<f64>().collect::<Vec<_>>())
            .collect()
    };
    let before = numbers(&model);
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init());
    let loss = config.init();
    let loss = fused.step(1.0, |model| model.loss(&loss));
    let after = numbers(&fused.model()).into_iter();
    let gradients = before.into_iter().zip(after);
    let gradients = gradients.map(|(before, after)| before - after).collect();
    (loss.into_scalar(), gradients)
}

#[test]
fn tiles_are_as_near_to_numbers_in_f64_as_one_chunk_is() {
    let device = Device::flex().autodiff();
    let whole = LinearCrossEntropyLossConfig::new();
    for head in heads() {
        let initial = Bigram::init(head.clone(), &device);
        let copy = || copy(&initial, || Bigram::init(head.clone(), &device));
        let wide = || cast(copy(), FloatDType::F64);
        let (loss, gradients) = of_step(wide(), &whole);
        for size in [1, 3, 11, 1024] {
            let (found, of_tiles) = of_step(copy(), &tiles(size));
            assert!((found - loss).abs() < 5e-7 * loss, "{found} and {loss}");
            let (in_f64, of_tiles_in_f64) = of_step(wide(), &tiles(size));
            assert!((in_f64 - loss).abs() < 1e-14, "{in_f64} and {loss}");
            let all = gradients.iter().zip(of_tiles).zip(of_tiles_in_f64);
            for ((whole, tiled), tiled_in_f64) in all {
                // A difference of weights of about 1.
                assert!((whole - tiled).abs() < 5e-7, "{whole} and {tiled}");
                assert!((whole - tiled_in_f64).abs() < 1e-14);
            }
        }
    }
}

/// 1024 tiles, each with a term of 2^-11 for the hidden state: in bf16 their sum would stay what it is long before the end.
#[test]
fn the_gradient_of_hidden_states_in_bf16_is_summed_in_f32() {
    let device = Device::flex().autodiff();
    let linear = |weight: Tensor<2>| Linear {
        weight: Param::from_tensor(weight.cast(FloatDType::BF16).require_grad()),
        bias: None,
    };
    #[derive(Module, Debug)]
    struct Two {
        first: Linear,
        head: Linear,
    }
    let two = Two {
        first: linear(Tensor::zeros([1, 1], &device)),
        head: linear(Tensor::ones([1, 1024], &device)),
    };
    let mut fused = FusedOptimizer::new(two, SgdConfig::new().init());
    let loss = tiles(1).init();
    let input = Tensor::<2>::ones([1, 1], &device).cast(FloatDType::BF16);
    let target = Tensor::<1, Int>::zeros([1], &device);
    fused.step(1.0, |model| {
        loss.forward(&model.head, model.first.forward(input), target) * 2.0
    });
    // Twice 1024 terms of 1/1024, without the target's 1.
    let moved: f32 = fused.model().first.weight.val().into_scalar();
    assert!(moved.abs() < 1e-2, "{moved}");
}

#[test]
fn the_head_of_tiles_is_stepped_in_place() {
    let device = Device::flex().autodiff();
    let loss = tiles(3).init();
    for head in heads() {
        let model = Bigram::init(head, &device);
        let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init());
        for _ in 0..2 {
            fused.step(1e-2, |model| model.loss(&loss));
        }
        assert_eq!(fused.last_step().copied, Some(0));
    }
}

#[test]
fn classes_that_can_not_be_count_for_nothing() {
    let device = Device::flex().autodiff();
    let mut model = Bigram::init(Some(LinearConfig::new(DIM, CLASSES)), &device);
    // A vocabulary that is filled up: nothing but such classes in the last tile, and one among others.
    let possible = CLASSES - 4;
    let filled = |bias: Tensor<1>| {
        let bias = bias.inner();
        let bias = bias.slice_fill(possible..CLASSES, f32::NEG_INFINITY);
        Tensor::from_inner(bias).require_grad()
    };
    let head = model.head.take().unwrap();
    model.head = Some(Linear {
        bias: head.bias.map(|bias| bias.map(filled)),
        ..head
    });
    let hidden = Tensor::<2>::ones([5, DIM], &device);
    let targets = Tensor::<1, Int>::from_data([0, 1, 2, 3, 6], &device);
    let head = model.head.as_ref().unwrap();
    let loss = |config: LinearCrossEntropyLossConfig| {
        let loss = config.init();
        let loss = loss.forward(head, hidden.clone(), targets.clone());
        let gradient = head.weight.val().grad(&loss.backward()).unwrap();
        (loss.into_scalar::<f32>(), gradient.into_data())
    };
    let (whole, gradient) = loss(LinearCrossEntropyLossConfig::new());
    let (tiled, of_tiles) = loss(tiles(3));
    assert!((whole - tiled).abs() < 1e-6, "{whole} and {tiled}");
    for (whole, tiled) in gradient.iter::<f32>().zip(of_tiles.iter::<f32>()) {
        assert!((whole - tiled).abs() < 1e-6, "{whole} and {tiled}");
    }
}

#[test]
fn numbers_that_are_none_stay_so() {
    let device = Device::flex().autodiff();
    let head = LinearConfig::new(DIM, CLASSES).init(&device);
    let hidden = Tensor::<2>::full([2, DIM], f32::NAN, &device);
    let targets = Tensor::<1, Int>::zeros([2], &device);
    let loss = tiles(3).init().forward(&head, hidden, targets);
    assert!(loss.into_scalar::<f32>().is_nan());
}

#[test]
#[should_panic(expected = "the target 11 is not one of the 11 classes of the head")]
fn a_target_outside_of_the_vocabulary_is_refused_by_tiles() {
    let device = Device::flex().autodiff();
    let head = LinearConfig::new(DIM, CLASSES).init(&device);
    let hidden = Tensor::<2>::ones([2, DIM], &device);
    let targets = Tensor::<1, Int>::from_data([0, 11], &device);
    tiles(3).init().forward(&head, hidden, targets);
}

#[test]
fn the_direction_that_takes_less_memory_is_chosen_and_said() {
    /// A head that computes all classes at once.
    #[derive(Module, Debug)]
    struct Whole {
        linear: Linear,
    }
    impl Head for Whole {
        fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
            self.linear.forward(hidden)
        }
    }
    let device = Device::flex().autodiff();
    // Lazy: nothing is drawn.
    let head = || LinearConfig::new(1024, 50_257).init(&device);
    let loss = LinearCrossEntropyLossConfig::new().init();
    let direction = |tokens| loss.direction(&head(), [tokens, 1024]);
    assert_eq!(direction(2048), LossDirection::Classes);
    assert_eq!(direction(32_768), LossDirection::Tokens);
    let whole = Whole { linear: head() };
    assert_eq!(loss.direction(&whole, [2048, 1024]), LossDirection::Tokens);
    let chunks = LinearCrossEntropyLossConfig::new().with_direction(Some(LossDirection::Tokens));
    let chunks = chunks.init();
    assert_eq!(
        chunks.direction(&head(), [2048, 1024]),
        LossDirection::Tokens
    );
}

#[test]
fn a_model_that_computes_in_another_type_trains_in_tiles() {
    let device = Device::flex().autodiff();
    let config = FusedConfig::new().with_compute_dtype(Some(FloatDType::F32));
    let model = cast(Bigram::init(heads()[1].clone(), &device), FloatDType::BF16);
    let train = |size| {
        let mut fused = FusedOptimizer::new(model.clone(), SgdConfig::new().init());
        fused = fused.with_config(config.clone());
        let loss = tiles(size).init();
        let loss = fused.step(1e-2, |model| model.loss(&loss));
        assert_eq!(loss.dtype(), DType::F32);
        weights(&fused.model())
    };
    assert_eq!(train(4), train(11));
}
