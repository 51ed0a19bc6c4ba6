//! A model with recomputed blocks trains as the model without. (Dropout in them is in
//! `tests/random.rs`.)

mod choice;
mod inputs;
mod joint;
mod misuse;
mod policies;
mod statistics;
mod tiled;
mod unet;

use crate::backends::on_every_backend;
use crate::common::*;

const RATE: f64 = 1e-2;

#[derive(Module, Debug)]
struct Block {
    expand: Linear,
    norm: BatchNorm,
    contract: Linear,
}

impl Block {
    fn init(device: &Device) -> Self {
        Self {
            expand: LinearConfig::new(6, 12).init(device),
            norm: BatchNormConfig::new(12).init(device),
            contract: LinearConfig::new(12, 6).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = self.norm.forward(self.expand.forward(x.clone())).tanh();
        x + self.contract.forward(hidden)
    }
}

#[derive(Module, Debug)]
struct Stack {
    input: Linear,
    blocks: Vec<Block>,
    output: Linear,
}

impl Stack {
    fn init(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(6, 6).init(device),
            blocks: (0..4).map(|_| Block::init(device)).collect(),
            output: LinearConfig::new(6, 2).init(device),
        }
    }

    /// The true gradient of a bias before a batch norm is zero. Where rounding differs from run to run, AdamW makes
    /// full steps of what is left of it, so there is none then.
    fn without_chance(device: &Device) -> Self {
        let mut stack = Self::init(device);
        if !is_exact(device) {
            let blocks = stack.blocks.iter_mut();
            blocks.for_each(|block| block.expand.bias = None);
        }
        stack
    }

    fn loss(&self, x: Tensor<2>, blocks: impl Fn(&[Block], Tensor<2>) -> Tensor<2>) -> Tensor<1> {
        let x = blocks(&self.blocks, self.input.forward(x));
        self.output.forward(x).powi_scalar(2).mean()
    }
}

fn plain(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    blocks.iter().fold(x, |x, block| block.forward(x))
}

fn each(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    let run = |block: &Block, x| block.forward(x);
    blocks
        .iter()
        .fold(x, |x, block| gradient_checkpointing(block, x, run))
}

fn sequential(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    gradient_checkpointing_sequential(blocks, x, None, Block::forward)
}

/// Blocks in segments, and in them every block once more.
fn nested(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    gradient_checkpointing_sequential(blocks, x, 2, |block, x| {
        gradient_checkpointing(block, x, |block: &Block, x| block.forward(x))
    })
}

/// The first block with its input as the first operation on the data.
fn first_and_last(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    let [first, middle @ .., last] = blocks else {
        unreachable!()
    };
    let x = gradient_checkpointing(first, x, |block: &Block, x| block.forward(x));
    gradient_checkpointing(last, plain(middle, x), |block: &Block, x| block.forward(x))
}

fn xs(device: &Device) -> Vec<Tensor<2>> {
    let x = || Tensor::random([5, 6], Distribution::Default, device);
    (0..5).map(|_| x()).collect()
}

fn recomputed_blocks_train_as_plain_ones(device: &Device) {
    let initial = Stack::without_chance(device);
    let copy = || copy(&initial, || Stack::without_chance(device));
    let xs = xs(device);
    let loss = |model: &Stack, step: usize| model.loss(xs[step].clone(), plain);
    let stock = train_stock(copy(), &mut AdamWConfig::new().init(), 5, RATE, loss);
    let ways: [fn(&[Block], Tensor<2>) -> Tensor<2>; 4] =
        [each, sequential, nested, first_and_last];
    for way in ways {
        let mut fused = FusedOptimizer::new_ok(copy(), AdamWConfig::new().init());
        train_fused(&mut fused, 5, RATE, |model, step| {
            model.loss(xs[step].clone(), way)
        });
        assert_eq!(fused.last_step().without_gradient, 0);
        assert_eq!(fused.last_step().copied.unwrap_or(0), 0);
        // Burn merges running statistics when they are read.
        assert_equal_weights(&stock.valid(), &fused.valid());
        assert_changed(&initial, &fused.model(), |_| true);
    }
}

fn outside_of_a_fused_step_a_block_is_simply_called(device: &Device) {
    let model = Stack::init(device);
    let x = xs(device).remove(0);
    let [with, without] = [each, plain].map(|way| model.loss(x.clone(), way));
    let gradient = |loss: Tensor<1>| {
        let gradients = loss.backward();
        let gradient = model.blocks[0].expand.weight.val().grad(&gradients);
        gradient.unwrap().into_data()
    };
    gradient(with).assert_approx_eq::<f32>(&gradient(without), Default::default());

    let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init());
    let valid = fused.valid();
    let inner = x.clone().inner();
    let [with, without] = [each, plain].map(|way| valid.loss(inner.clone(), way).into_data());
    with.assert_approx_eq::<f32>(&without, Default::default());
    // Nor for a look without autodiff inside of one.
    let (_, seen) = fused.step_ok(RATE, |model| {
        let seen = model.valid().loss(inner.clone(), each);
        (model.loss(x.clone(), each), seen)
    });
    seen.into_data()
        .assert_approx_eq::<f32>(&without, Default::default());
}

/// A network of tokens: integers go in, a mask passes through, the embedding is the output layer, two
/// blocks share a weight.
#[derive(Module, Debug)]
struct Tokens {
    embedding: Embedding,
    norm: LayerNorm,
    shared: Linear,
    own: Linear,
}

impl Tokens {
    fn init(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(11, 8).init(device),
            norm: LayerNormConfig::new(8).init(device),
            shared: LinearConfig::new(8, 8).init(device),
            own: LinearConfig::new(8, 8).init(device),
        }
    }

    fn loss(&self, tokens: Tensor<2, Int>, recompute: bool) -> Tensor<1> {
        type Activations = (Tensor<3>, Tensor<3>, Tensor<3, Bool>);

        fn embed(model: &Tokens, tokens: Tensor<2, Int>) -> (Tensor<3>, Tensor<3, Bool>) {
            let x = model.embedding.forward(tokens);
            let mask = x.clone().greater_equal_scalar(0.0);
            (x, mask)
        }
        fn first(model: &Tokens, (x, mask): (Tensor<3>, Tensor<3, Bool>)) -> Activations {
            let hidden = model.shared.forward(x.clone()).mask_fill(mask.clone(), 0.5);
            (x, hidden.tanh(), mask)
        }
        fn second(model: &Tokens, (x, hidden, mask): Activations) -> Tensor<3> {
            let hidden = model.shared.forward(hidden).mask_fill(mask, 0.1);
            model.norm.forward(x + model.own.forward(hidden.tanh()))
        }
        let x = match recompute {
            true => {
                let activations = gradient_checkpointing(self, tokens.clone(), embed);
                let activations = gradient_checkpointing(self, activations, first);
                gradient_checkpointing(self, activations, second)
            }
            false => second(self, first(self, embed(self, tokens.clone()))),
        };
        // The embedding once more, outside.
        let logits = x.matmul(self.embedding.weight.val().transpose().unsqueeze());
        logits.powi_scalar(2).mean()
    }
}

fn several_inputs_and_outputs_and_shared_weights_train_as_plain_ones(device: &Device) {
    let initial = Tokens::init(device);
    let copy = || copy(&initial, || Tokens::init(device));
    let tokens = Tensor::<2, Int>::from_data([[1, 5, 3, 10], [0, 2, 2, 7]], device);
    let loss = |model: &Tokens, _| model.loss(tokens.clone(), false);
    let stock = train_stock(copy(), &mut SgdConfig::new().init(), 3, RATE, loss);
    let mut fused = FusedOptimizer::new_ok(copy(), SgdConfig::new().init());
    train_fused(&mut fused, 3, RATE, |model, _| {
        model.loss(tokens.clone(), true)
    });
    assert_eq!(fused.last_step().without_gradient, 0);
    assert_eq!(fused.last_step().updated, 7);
    assert_equal_weights(&stock, &fused.model());
}

fn frozen_parts_and_unused_outputs_stay(device: &Device) {
    let initial = Stack::init(device);
    let x = xs(device).remove(0);
    let train = |way: fn(&[Block], Tensor<2>) -> Tensor<2>| {
        let model = copy(&initial, || Stack::init(device));
        let frozen = ParamGroup::from_predicate("blocks.1");
        let mut fused = FusedOptimizer::new_ok(model.freeze_group(frozen), SgdConfig::new().init());
        fused.step_ok(RATE, |model| {
            let x = model.input.forward(x.clone());
            // Computed, and not part of the loss: its parameters get no gradient.
            way(&model.blocks[3..], x.clone());
            model.output.forward(way(&model.blocks[..3], x)).mean()
        });
        assert_eq!(fused.last_step().without_gradient, 6);
        fused.valid()
    };
    let recomputed = train(each);
    assert_equal_weights(&train(plain), &recomputed);
    for ((path, before), (_, after)) in weights(&initial).iter().zip(weights(&recomputed)) {
        let stays = path.starts_with("blocks.1") || path.starts_with("blocks.3");
        let same = before.as_bytes() == after.as_bytes();
        assert!(
            same || !stays || path.contains("running"),
            "`{path}` changed"
        );
    }
}

on_every_backend!(
    recomputed_blocks_train_as_plain_ones,
    outside_of_a_fused_step_a_block_is_simply_called,
    several_inputs_and_outputs_and_shared_weights_train_as_plain_ones,
    frozen_parts_and_unused_outputs_stay,
);
