//! A model with recomputed blocks trains as the model without. (`tests/random` tests dropout in blocks.)

mod inputs;
mod joint;
mod misuse;
mod policies;
mod statistics;
mod tiled;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::*;
use inputs::Recomputations;

const RATE: f64 = 1e-2;

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

    fn loss(&self, x: Tensor<2>, blocks: impl Fn(&[Block], Tensor<2>) -> Tensor<2>) -> Tensor<1> {
        let x = blocks(&self.blocks, self.input.forward(x));
        self.output.forward(x).powi_scalar(2).mean()
    }
}

/// The caller of the blocks.
type Way = fn(&[Block], Tensor<2>) -> Tensor<2>;

const WAYS: [Way; 4] = [each, sequential, nested, first_and_last];

fn plain(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    blocks.iter().fold(x, |x, block| block.forward(x))
}

fn each(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    let forward = |x, block| gradient_checkpointing(block, x, Block::forward);
    blocks.iter().fold(x, forward)
}

fn sequential(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    gradient_checkpointing_sequential(blocks, x, None, Block::forward)
}

/// Runs segments as blocks, and each block in them as a nested block.
fn nested(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    gradient_checkpointing_sequential(blocks, x, 2, |block, x| {
        gradient_checkpointing(block, x, Block::forward)
    })
}

/// The first block with its input as the first operation on the data.
fn first_and_last(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    let [first, middle @ .., last] = blocks else {
        unreachable!()
    };
    let x = gradient_checkpointing(first, x, Block::forward);
    gradient_checkpointing(last, plain(middle, x), Block::forward)
}

fn xs(device: &Device) -> Vec<Tensor<2>> {
    randoms(5, [5, 6], device)
}

/// Trains copies of a model with AdamW in each of `ways`. Panics unless all end with the weights of the first way.
fn assert_equal_in<M: Module, W: Copy>(
    ways: &[W],
    init: impl Fn() -> M,
    train: impl Fn(FusedOptimizer<M>, W) -> FusedOptimizer<M>,
) {
    let initial = init();
    let [expected, others @ ..] = ways else {
        panic!("there is nothing to train")
    };
    let trained = |way: &W| {
        let fused = FusedOptimizer::new(copy(&initial, &init), AdamWConfig::new().init()).unwrap();
        train(fused, *way).valid()
    };
    let expected = trained(expected);
    for way in others {
        assert_equal_weights(&expected, &trained(way));
    }
}

fn keeping(keep: &[bool]) -> GradientCheckpointingConfig {
    GradientCheckpointingConfig::new().with_keep_activations(keep.to_vec())
}

/// Blocks are recomputed or kept, and inputs may be on the host. Burn's own checkpointing may be within the blocks and
/// around them.
fn recomputed_blocks_train_as_plain_ones(device: &Device) {
    for device in [device.clone(), device.clone().gradient_checkpointing()] {
        recomputed_blocks_train_as_plain_ones_on(&device);
    }
}

fn recomputed_blocks_train_as_plain_ones_on(device: &Device) {
    let initial = Stack::init(device);
    let copy = || copy(&initial, || Stack::init(device));
    let xs = xs(device);
    let loss = |model: &Stack, step: usize| model.loss(xs[step].clone(), plain);
    let stock = train_stock(copy(), &mut AdamWConfig::new().init(), 5, RATE, loss);
    let choices = [
        keeping(&[true; 4]),
        keeping(&[true, false, true, false]),
        keeping(&[false, true]),
        keeping(&[true; 9]),
        GradientCheckpointingConfig::new().with_offload_inputs(true),
        keeping(&[false, true]).with_offload_inputs(true),
    ];
    let chosen = choices.iter();
    let chosen = chosen.flat_map(|choice| [each as Way, nested].map(|way| (choice.clone(), way)));
    let all = WAYS.map(|way| (GradientCheckpointingConfig::new(), way));
    for (choice, way) in all.into_iter().chain(chosen) {
        let mut fused = FusedOptimizer::new(copy(), AdamWConfig::new().init())
            .unwrap()
            .with_config(FusedConfig::new().with_gradient_checkpointing(choice))
            .unwrap();
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

fn assert_same(found: TensorData, expected: TensorData, device: &Device) {
    match is_exact(device) {
        true => found.assert_eq(&expected, true),
        false => found.assert_approx_eq::<f32>(&expected, Default::default()),
    }
}

fn block_outside_of_fused_step_is_simply_called(device: &Device) {
    let model = Stack::init(device);
    let x = xs(device).remove(0);
    let [with, without] = [each, plain].map(|way| model.loss(x.clone(), way));
    let gradient = |loss: Tensor<1>| {
        let gradients = loss.backward();
        let gradient = model.blocks[0].expand.weight.val().grad(&gradients);
        gradient.unwrap().into_data()
    };
    assert_same(gradient(with), gradient(without), device);

    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
    let valid = fused.valid();
    let inner = x.clone().inner();
    let [with, without] = [each, plain].map(|way| valid.loss(inner.clone(), way).into_data());
    assert_same(with, without.clone(), device);
    // Also for inference inside a step.
    let (_, seen) = fused
        .step(RATE, |model| {
            let seen = model.valid().loss(inner.clone(), each);
            (model.loss(x.clone(), each), seen)
        })
        .unwrap();
    assert_same(seen.into_data(), without, device);
}

fn blocks_frozen_or_unused_stay_unchanged(device: &Device) {
    let frozen = ParamGroup::from_predicate("blocks.1");
    let init = || Stack::init(device).freeze_group(frozen.clone());
    let x = xs(device).remove(0);
    assert_equal_in(&[plain as Way, each], init, |mut fused, way| {
        let before = fused.model();
        fused
            .step(RATE, |model| {
                let x = model.input.forward(x.clone());
                // Computed but not part of the loss, so its parameters receive no gradient.
                way(&model.blocks[3..], x.clone());
                model.output.forward(way(&model.blocks[..3], x)).mean()
            })
            .unwrap();
        assert_eq!(fused.last_step().without_gradient, 6);
        assert_kept(&before, &fused.model(), |path| {
            path.starts_with("blocks.1") || path.starts_with("blocks.3")
        });
        fused
    });
}

on_every_backend!(
    recomputed_blocks_train_as_plain_ones,
    block_outside_of_fused_step_is_simply_called,
    blocks_frozen_or_unused_stay_unchanged,
);

/// A block that runs once keeps its activations, one that runs twice does not.
#[test]
fn kept_blocks_are_counted_outside_of_other_blocks() {
    let device = Device::flex().autodiff();
    let mut fused = FusedOptimizer::new(Stack::init(&device), SgdConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::new().with_gradient_checkpointing(keeping(&[false, true])))
        .unwrap();
    let x = xs(&device).remove(0);
    let runs = Arc::new(Mutex::new(Vec::new()));
    type Runs = Constant<Arc<Mutex<Vec<(&'static str, bool)>>>>;
    let noting = |name: &'static str| {
        move |block: &Block, (x, Constant(runs)): (Tensor<2>, Runs)| {
            let recorded = block.expand.weight.val().is_tracked();
            runs.lock().unwrap().push((name, recorded));
            block.forward(x)
        }
    };
    let input = |x: Tensor<2>| (x, Constant(runs.clone()));
    // In two steps, because each step counts from the start.
    for _ in 0..2 {
        runs.lock().unwrap().clear();
        fused
            .step(RATE, |model| {
                let looked = model.valid();
                let look = input(x.clone().inner());
                gradient_checkpointing(&looked.blocks[0], look, noting("look"));
                let inner = noting("inner");
                let outer = move |block: &Block, input| gradient_checkpointing(block, input, inner);
                let x = gradient_checkpointing(&model.blocks[0], input(x.clone()), outer);
                let x = gradient_checkpointing(&model.blocks[1], input(x), noting("kept"));
                let x = gradient_checkpointing(&model.blocks[2], input(x), noting("beyond"));
                x.mean()
            })
            .unwrap();
        let mut runs = runs.lock().unwrap().clone();
        runs.sort_unstable();
        // A recorded run may repeat if concurrent tests draw random numbers.
        runs.dedup();
        let twice = |name| [(name, false), (name, true)];
        let once = [("kept", true), ("look", false)];
        assert_eq!(runs, [twice("beyond"), twice("inner"), once].concat());
    }
}

#[test]
fn sequential_has_requested_number_of_segments() {
    let device = flex();
    let x = xs(&device).remove(0);
    for (segments, expected) in [(1, 1), (2, 2), (3, 3), (4, 4), (9, 4)] {
        let recomputed = Arc::<AtomicUsize>::default();
        let model = Stack::init(&device);
        let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())
            .unwrap()
            .with_observer(Recomputations(recomputed.clone()));
        let in_segments = |blocks: &[Block], x| {
            gradient_checkpointing_sequential(blocks, x, segments, Block::forward)
        };
        fused
            .step(RATE, |model| model.loss(x.clone(), in_segments))
            .unwrap();
        assert_eq!(recomputed.load(Ordering::Relaxed), expected, "{segments}");
    }
}

/// Values are drawn in the order of their reads, as in a plain call.
#[test]
fn block_of_lazy_parameters_is_not_initialized_before_its_reads() {
    let device = flex();
    let layer: Linear = LinearConfig::new(6, 6).init(&device);
    let x = xs(&device).remove(0);
    let y = gradient_checkpointing(&layer, x, |layer: &Linear, x| {
        assert!(!layer.weight.is_initialized());
        layer.forward(x)
    });
    assert_eq!(y.dims(), [5, 6]);
}
