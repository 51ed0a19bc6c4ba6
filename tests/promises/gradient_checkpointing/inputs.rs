//! Inputs and outputs of a block that are not plain tensors.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::nn::attention::{MhaInput, MhaOutput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{Lstm, LstmConfig, LstmState};

use super::*;

#[derive(Module, Debug)]
struct Mixed {
    embedding: Embedding,
    first: Lstm,
    second: Lstm,
    attention: MultiHeadAttention,
    output: Linear,
}

/// The output of a layer.
#[derive(Activations, Clone)]
struct Sequence<S> {
    x: Tensor<3>,
    state: S,
}

/// A value that is no tensor, of any type.
#[derive(Activations, Clone)]
struct Scaled<T: std::panic::RefUnwindSafe> {
    x: Tensor<2>,
    by: Constant<T>,
}

/// Inputs and outputs of attention.
#[derive(Activations, Clone)]
enum Attended {
    Given(Tensor<3>, Option<Tensor<3, Bool>>),
    Reduced {
        output: MhaOutput,
        powers: Constant<Vec<i32>>,
    },
    Nothing,
}

fn start(layer: &Lstm, x: Tensor<3>) -> Sequence<LstmState<2>> {
    let (x, state) = layer.forward(x, None);
    Sequence { x, state }
}

fn go_on(layer: &Lstm, before: Sequence<LstmState<2>>) -> Sequence<Vec<LstmState<2>>> {
    let (x, state) = layer.forward(before.x, Some(before.state));
    let state = vec![state];
    Sequence { x, state }
}

fn attend(attention: &MultiHeadAttention, input: Attended) -> Attended {
    let Attended::Given(x, mask) = input else {
        return Attended::Nothing;
    };
    let input = MhaInput::self_attn(x);
    let input = match mask {
        Some(mask) => input.mask_attn(mask),
        None => input,
    };
    Attended::Reduced {
        output: attention.forward(input),
        powers: Constant(vec![2, 3]),
    }
}

fn reduce(linear: &Linear, attended: Attended) -> Tensor<1> {
    let Attended::Reduced { output, powers } = attended else {
        panic!("nothing to reduce");
    };
    let Constant(powers) = powers;
    let context = linear.forward(output.context).powi_scalar(powers[0]);
    context.mean() + output.weights.powi_scalar(powers[1]).mean()
}

impl Mixed {
    fn init(device: &Device) -> Self {
        let lstm = || LstmConfig::new(6, 6, true).init(device);
        Self {
            embedding: EmbeddingConfig::new(9, 6).init(device),
            first: lstm(),
            second: lstm(),
            attention: MultiHeadAttentionConfig::new(6, 2)
                .with_dropout(0.0)
                .init(device),
            output: LinearConfig::new(6, 1).init(device),
        }
    }

    /// The embedding is also used outside of blocks.
    fn loss(&self, tokens: Tensor<2, Int>, in_blocks: bool) -> Tensor<1> {
        let masked = Tensor::<3, Bool>::tril_mask([2, 2, 2], 0, &tokens.device());
        let embed = |embedding: &Embedding, tokens: Tensor<2, Int>| embedding.forward(tokens);
        let x = block_if(in_blocks, &self.embedding, tokens, embed);
        let sequence = block_if(in_blocks, &self.first, x, start);
        let Sequence { x, state } = block_if(in_blocks, &self.second, sequence, go_on);
        let given = Attended::Given(x, Some(masked));
        let attended = block_if(in_blocks, &self.attention, given, attend);
        let reduced = block_if(in_blocks, &self.output, attended, reduce);
        let cell = state[0].cell.clone();
        reduced + cell.matmul(self.embedding.weight.val().transpose()).mean()
    }
}

fn blocks_with_structs_and_constants_train_as_plain_calls(device: &Device) {
    let tokens = Tensor::<2, Int>::from_data([[1, 5], [0, 8]], device);
    // Without blocks, in blocks, and with block inputs on the host.
    let ways = [(false, false), (true, false), (true, true)];
    let init = || Mixed::init(device);
    assert_equal_in(&ways, init, |fused, (in_blocks, offload)| {
        let config = GradientCheckpointingConfig::new().with_offload_inputs(offload);
        let config = FusedConfig::new().with_gradient_checkpointing(config);
        let mut fused = fused.with_config(config).unwrap();
        train_fused(&mut fused, 3, RATE, |model, _| {
            model.loss(tokens.clone(), in_blocks)
        });
        assert_eq!(fused.last_step().without_gradient, 0);
        fused
    });
}

on_every_backend!(blocks_with_structs_and_constants_train_as_plain_calls);

/// Counts recomputations.
pub(super) struct Recomputations(pub(super) Arc<AtomicUsize>);

impl StepObserver for Recomputations {
    fn observe(&self, event: StepEvent<'_>) {
        if let StepEvent::BlockRecompute { .. } = event {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn block_with_tensor_without_autodiff_is_recomputed() {
    let device = flex();
    let init = || LinearConfig::new(6, 6).init(&device);
    let x = randoms::<2>(1, [3, 6], &device).remove(0);
    let table = x.clone().inner().sin();
    let teacher = LinearConfig::new(6, 6).init(&device).valid();
    // With an input under autodiff and one without, with that one alone, and with a layer for inference.
    let loss = |model: &Linear, in_blocks: bool| {
        let scaled = |layer: &Linear, (x, table): (Tensor<2>, Tensor<2>)| {
            layer.forward(x) * Tensor::from_inner(table.inner())
        };
        let both = block_if(in_blocks, model, (x.clone(), table.clone()), scaled);
        let inner = |layer: &Linear, table: Tensor<2>| {
            layer.forward(Tensor::from_inner(table.inner())).tanh()
        };
        let alone = block_if(in_blocks, model, table.clone(), inner);
        let layers = (teacher.clone(), model.clone());
        let taught = |(teacher, student): &(Linear, Linear), x: Tensor<2>| {
            student.forward(x.clone()) - Tensor::from_inner(teacher.forward(x.inner()))
        };
        let taught = block_if(in_blocks, &layers, x.clone(), taught);
        (both + alone + taught).square().mean()
    };
    assert_equal_in(&[false, true], init, |fused, in_blocks| {
        let recomputed = Arc::<AtomicUsize>::default();
        let mut fused = fused.with_observer(Recomputations(recomputed.clone()));
        train_fused(&mut fused, 3, RATE, |model, _| loss(model, in_blocks));
        let expected = if in_blocks { 3 * 3 } else { 0 };
        assert_eq!(recomputed.load(Ordering::Relaxed), expected);
        fused
    });
}

trait Cell {
    type State;
}

impl Cell for Linear {
    type State = Tensor<2>;
}

/// An associated type with the name of the struct.
#[derive(Activations, Clone)]
struct State<C: Cell> {
    x: Tensor<2>,
    state: C::State,
}

#[test]
fn struct_with_associated_type_of_its_name_is_an_input() {
    let device = Device::flex().autodiff();
    let layer: Linear = LinearConfig::new(3, 3).init(&device);
    let run = |layer: &Linear, input: State<Linear>| layer.forward(input.x) + input.state;
    let x = Tensor::<2>::ones([2, 3], &device);
    let mut fused = FusedOptimizer::new(layer, SgdConfig::new().init()).unwrap();
    let step = fused.step(0.1, |layer| {
        let (x, state) = (x.clone(), x.clone());
        gradient_checkpointing(layer, State { x, state }, run).mean()
    });
    step.unwrap();
}

mod inner {
    use super::*;

    #[derive(Activations, Clone)]
    pub struct Outer<T> {
        pub x: T,
    }
}

/// A type of another module with the name of the struct.
#[derive(Activations, Clone)]
struct Outer<T> {
    inner: inner::Outer<T>,
}

#[test]
fn struct_with_type_of_its_name_elsewhere_is_an_input() {
    let device = Device::flex().autodiff();
    let layer: Linear = LinearConfig::new(3, 3).init(&device);
    let run = |layer: &Linear, input: Outer<Tensor<2>>| layer.forward(input.inner.x);
    let x = Tensor::<2>::ones([2, 3], &device);
    let inner = inner::Outer { x };
    gradient_checkpointing(&layer, Outer { inner }, run);
}

/// A type that contains itself.
#[derive(Activations, Clone)]
struct Tree<S> {
    x: S,
    branches: Vec<Tree<S>>,
    others: Vec<self::Tree<S>>,
}

#[test]
fn recursive_struct_is_an_input() {
    let device = Device::flex().autodiff();
    let layer: Linear = LinearConfig::new(3, 2).init(&device);
    let run = |layer: &Linear, tree: Tree<Tensor<2>>| {
        let branches = tree.branches.into_iter();
        branches.fold(layer.forward(tree.x), |sum, branch| {
            sum + layer.forward(branch.x)
        })
    };
    let leaf = || Tree {
        x: Tensor::ones([4, 3], &device),
        branches: Vec::new(),
        others: Vec::new(),
    };
    let input = Tree {
        branches: vec![leaf(), leaf()],
        ..leaf()
    };
    let expected = run(&layer, input.clone());
    let found = gradient_checkpointing(&layer, input, run);
    assert_eq!(found.into_data(), expected.into_data());
}

#[test]
fn struct_with_generic_constant_is_an_input() {
    let device = Device::flex().autodiff();
    let layer: Linear = LinearConfig::new(3, 2).init(&device);
    let run = |layer: &Linear, Scaled { x, by }: Scaled<f32>| layer.forward(x) * by.0;
    let input = Scaled {
        x: Tensor::ones([4, 3], &device),
        by: Constant(2.0_f32),
    };
    let expected = run(&layer, input.clone());
    let found = gradient_checkpointing(&layer, input, run);
    assert_eq!(found.into_data(), expected.into_data());
}

#[derive(Module, Debug)]
struct Normalized {
    norm: BatchNorm,
    linear: Linear,
}

/// Burn's layers compute as for inference if their input has no autodiff: without dropout, by the running statistics.
#[test]
fn block_on_input_without_autodiff_computes_as_for_inference() {
    for device in [flex(), flex().gradient_checkpointing()] {
        let init = || Normalized {
            norm: BatchNormConfig::new(6).init(&device),
            linear: LinearConfig::new(6, 6).init(&device),
        };
        let x = randoms::<2>(1, [4, 6], &device).remove(0).inner();
        let forward = |block: &Normalized, x: Tensor<2>| {
            let x = DropoutConfig::new(0.5).init().forward(x);
            block.linear.forward(block.norm.forward(x))
        };
        assert_equal_in(&[false, true], init, |mut fused, in_blocks| {
            train_fused(&mut fused, 3, RATE, |model, _| {
                let y = block_if(in_blocks, model, x.clone(), forward);
                y.square().mean()
            });
            fused
        });
    }
}

#[test]
fn block_output_without_autodiff_stays_so() {
    let device = flex();
    let init = || LinearConfig::new(6, 6).init(&device);
    let x = randoms::<2>(1, [3, 6], &device).remove(0);
    let table = x.clone().inner();
    assert_equal_in(&[false, true], init, |mut fused, in_blocks| {
        train_fused(&mut fused, 2, RATE, |model, _| {
            let input = (table.clone(), x.clone());
            let (table, y) = block_if(in_blocks, model, input, |layer: &Linear, (table, x)| {
                (table.sin(), layer.forward(x))
            });
            assert!(!table.is_autodiff());
            let table = block_if(in_blocks, model, table, |_: &Linear, table| table.cos());
            assert!(!table.is_autodiff());
            (y * Tensor::from_inner(table)).square().mean()
        });
        fused
    });
}

/// Otherwise each later block would compute a gradient for it.
#[test]
fn constant_that_block_returns_stays_constant() {
    let device = Device::flex().autodiff();
    let (model, x) = (Stack::init(&device), xs(&device).remove(0));
    let mask = Tensor::<2>::ones(x.dims(), &device);
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
    fused
        .step(RATE, |model| {
            let run = |layer: &Linear, (x, mask): (Tensor<2>, Tensor<2>)| {
                (layer.forward(x * mask.clone()), mask)
            };
            let (output, mask) =
                gradient_checkpointing(&model.input, (x.clone(), mask.clone()), run);
            assert!(output.is_tracked() && mask.is_autodiff() && !mask.is_tracked());
            output.mean()
        })
        .unwrap();
    assert_eq!(fused.last_step().updated, 2);
}
