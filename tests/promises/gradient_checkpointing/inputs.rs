//! Inputs and outputs of a block that are not plain tensors.

use burn::nn::attention::{MhaInput, MhaOutput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{Lstm, LstmConfig, LstmState};

use super::*;

#[derive(Module, Debug)]
struct Mixed {
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
            first: lstm(),
            second: lstm(),
            attention: MultiHeadAttentionConfig::new(6, 2)
                .with_dropout(0.0)
                .init(device),
            output: LinearConfig::new(6, 1).init(device),
        }
    }

    fn loss(&self, x: Tensor<3>, in_blocks: bool) -> Tensor<1> {
        let masked = Tensor::<3, Bool>::tril_mask([2, 2, 2], 0, &x.device());
        let (reduced, state) = if in_blocks {
            let sequence = gradient_checkpointing(&self.first, x, start);
            let Sequence { x, state } = gradient_checkpointing(&self.second, sequence, go_on);
            let given = Attended::Given(x, Some(masked));
            let attended = gradient_checkpointing(&self.attention, given, attend);
            (
                gradient_checkpointing(&self.output, attended, reduce),
                state,
            )
        } else {
            let Sequence { x, state } = go_on(&self.second, start(&self.first, x));
            let given = Attended::Given(x, Some(masked));
            (reduce(&self.output, attend(&self.attention, given)), state)
        };
        reduced + state[0].cell.clone().mean()
    }
}

fn structs_constants_and_what_derives_it_train_as_in_plain_calls(device: &Device) {
    let initial = Mixed::init(device);
    let x = Tensor::<3>::random([2, 2, 6], Distribution::Default, device);
    let train = |in_blocks: bool| {
        let model = copy(&initial, || Mixed::init(device));
        let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
        for _ in 0..3 {
            fused.step_ok(RATE, |model| model.loss(x.clone(), in_blocks));
            assert_eq!(fused.last_step().without_gradient, 0);
        }
        fused.model()
    };
    assert_equal_weights(&train(false), &train(true));
}

on_every_backend!(structs_constants_and_what_derives_it_train_as_in_plain_calls);
