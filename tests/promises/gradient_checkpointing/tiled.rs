//! An operation on each token gives the same result on tiles of the sequence as on all of it.

use burn::nn::{RmsNorm, RmsNormConfig};
use burn::tensor::activation::softmax;

use super::*;

/// Attention of one head, then an MLP behind a norm.
#[derive(Module, Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    norm: RmsNorm,
    mlp: Mlp,
}

#[derive(Module, Debug)]
struct Mlp {
    expand: Linear,
    contract: Linear,
}

impl Mlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.contract.forward(self.expand.forward(x).tanh())
    }
}

impl Layer {
    fn init(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            query: linear(6, 6),
            key: linear(6, 6),
            norm: RmsNormConfig::new(6).init(device),
            mlp: Mlp {
                expand: linear(6, 12),
                contract: linear(12, 6),
            },
        }
    }

    /// The keys and values that a query reads from all tokens.
    fn looked(&self, query: Tensor<3>, seen: Tensor<3>) -> Tensor<3> {
        let key = self.key.forward(seen.clone());
        let scores = self.query.forward(query).matmul(key.swap_dims(1, 2));
        softmax(scores, 2).matmul(seen)
    }

    /// x: `[batch, tokens, 6]`
    fn forward(&self, x: Tensor<3>, tile: Option<usize>) -> Tensor<3> {
        let look = |layer: &Self, (query, Whole(seen))| layer.looked(query, seen);
        let mlp = |(norm, mlp): &(RmsNorm, Mlp), x| mlp.forward(norm.forward(x));
        let input = (x.clone(), Whole(x.clone()));
        let of_tokens = &(self.norm.clone(), self.mlp.clone());
        match tile {
            None => {
                let x = look(self, input) + x;
                mlp(of_tokens, x.clone()) + x
            }
            Some(tile) => {
                let x = gradient_checkpointing_tiled(self, input, 1, tile, look) + x;
                gradient_checkpointing_tiled(of_tokens, x.clone(), 1, tile, mlp) + x
            }
        }
    }
}

fn input(tokens: usize, device: &Device) -> Tensor<3> {
    let numbers = Tensor::<1, Int>::arange(0..(2 * tokens * 6) as i64, device).float();
    numbers.sin().reshape([2, tokens as i32, 6])
}

/// In two tiles, because a sum of two terms has no order.
fn tiled_training_equals_stock(device: &Device) {
    for nested in [false, true] {
        let initial = Layer::init(device);
        let copy = || copy(&initial, || Layer::init(device));
        let x = input(7, device);
        let loss = |model: &Layer, _| {
            let run = |layer: &Layer, x| layer.forward(x, Some(4));
            let output = block_if(nested, model, x.clone(), run);
            output.powi_scalar(2).mean()
        };
        let stock = train_stock(copy(), &mut AdamWConfig::new().init(), 3, RATE, loss);
        let mut fused = FusedOptimizer::new(copy(), AdamWConfig::new().init()).unwrap();
        train_fused(&mut fused, 3, RATE, loss);
        // The gradient of the key's bias is only rounding error.
        match is_exact(device) {
            true => assert_near_weights(&stock, &fused.model(), 1e-6, 0.0),
            false => assert_equal_weights(&stock, &fused.model()),
        }
        assert_changed(&initial, &fused.model(), |_| true);
        assert!(fused.last_step().copied.is_none_or(|copied| copied == 0));
    }
}

on_every_backend!(tiled_training_equals_stock);

#[test]
fn tiles_of_any_size_train_as_whole() {
    let device = Device::flex().autodiff();
    let initial = Layer::init(&device);
    let train = |tile| {
        let model = copy(&initial, || Layer::init(&device));
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
        let losses = [(); 3].map(|()| {
            let output = |model: &Layer| model.forward(input(11, &device), tile);
            let loss = fused
                .step(0.1, |model| output(model).powi_scalar(2).mean())
                .unwrap();
            loss.into_scalar::<f32>()
        });
        (losses, fused.model())
    };
    let (losses, whole) = train(None);
    for tile in [1, 3, 11, 100] {
        let (of_tiles, tiled) = train(Some(tile));
        for (one, other) in losses.iter().zip(of_tiles) {
            assert!((one - other).abs() <= 1e-6 * one.abs(), "{one} and {other}");
        }
        assert_near_weights(&whole, &tiled, 1e-6, 0.0);
    }
}

#[test]
fn tiled_inputs_and_outputs_may_be_tensors_of_any_kind() {
    let device = Device::flex().autodiff();
    let mlp = Layer::init(&device).mlp;
    let x = input(5, &device);
    let index = Tensor::<1, Int>::arange(0..10, &device).reshape([2, 5]);
    let is_even: Tensor<2, Bool> = index.clone().remainder_scalar(2).equal_scalar(0);
    let run = |mlp: &Mlp, (x, index, is_even, Constant(by))| {
        let index: Tensor<2, Int> = index;
        let is_even: Tensor<2, Bool> = is_even;
        (
            mlp.forward(x) * by,
            index.mask_fill(is_even.clone(), -1),
            is_even,
        )
    };
    let input = (x, index, is_even, Constant(2.0));
    let (y, index, is_even) = run(&mlp, input.clone());
    let (tiled, of_tiles, even_of_tiles) = gradient_checkpointing_tiled(&mlp, input, 1, 2, run);
    let near = burn::tensor::Tolerance::<f32>::absolute(1e-6);
    tiled.into_data().assert_approx_eq(&y.into_data(), near);
    assert_eq!(of_tiles.into_data(), index.into_data());
    assert_eq!(even_of_tiles.into_data(), is_even.into_data());
}

#[test]
fn tiled_sequence_without_tokens_stays_empty() {
    let device = Device::flex().autodiff();
    let mlp = Layer::init(&device).mlp;
    let x = Tensor::<3>::zeros([2, 0, 6], &device);
    let y = gradient_checkpointing_tiled(&mlp, x, 1, 4, |_: &Mlp, x| x);
    assert_eq!(y.dims(), [2, 0, 6]);
}

#[test]
fn tiled_operation_that_changes_tokens_is_refused() {
    let device = Device::flex().autodiff();
    let mlp = Layer::init(&device).mlp;
    let x = input(5, &device);
    let mut fused = FusedOptimizer::new(mlp, SgdConfig::new().init()).unwrap();
    let before = weights(&fused.model());
    let message = panic_of(|| {
        fused
            .step(1.0, |mlp| {
                let pooled = |mlp: &Mlp, x: Tensor<3>| mlp.forward(x).mean_dim(1);
                gradient_checkpointing_tiled(mlp, x.clone(), 1, 2, pooled).mean()
            })
            .unwrap()
    });
    assert_says(&message, "received 2 tokens and returned 1");
    assert_eq!(weights(&fused.model()), before);
}

#[test]
fn tiles_and_segments_that_do_not_fit_are_refused() {
    let device = Device::flex().autodiff();
    let mlp = Layer::init(&device).mlp;
    let x = input(5, &device);
    let run = |mlp: &Mlp, x| mlp.forward(x);
    let message = panic_of(|| gradient_checkpointing_tiled(&mlp, x.clone(), 1, 0, run));
    assert_says(&message, "`tile_size` is 0");
    let message = panic_of(|| gradient_checkpointing_tiled(&mlp, x.clone(), 3, 2, run));
    assert_says(&message, "[2, 5, 6] has no dimension 3");
    let both = (x.clone(), x.clone().narrow(1, 0, 4));
    let run = |_: &Mlp, (x, _): (Tensor<3>, Tensor<3>)| x;
    let message = panic_of(|| gradient_checkpointing_tiled(&mlp, both, 1, 2, run));
    assert_says(&message, "have 5 and 4 tokens");
    let run = |mlp: &Mlp, Whole(x)| Whole(mlp.forward(x));
    let message = panic_of(|| gradient_checkpointing_tiled(&mlp, Whole(x), 1, 2, run));
    assert_says(&message, "all inputs are `Whole`");
    let x = input(5, &device);
    let run = |mlp: &Mlp, x: Tensor<3>| (mlp.forward(x.clone()), Whole(x.mean()));
    let message = panic_of(|| gradient_checkpointing_tiled(&mlp, x.clone(), 1, 2, run));
    assert_says(&message, "each tile returned a `Whole`");
    // One tile is joined with no other.
    let (_, Whole(mean)) = gradient_checkpointing_tiled(&mlp, x, 1, 5, run);
    assert_eq!(mean.dims(), [1]);
    let layers = vec![mlp];
    let message =
        panic_of(|| gradient_checkpointing_sequential(&layers, input(5, &device), 0, Mlp::forward));
    assert_says(&message, "`segments` is 0");
}
