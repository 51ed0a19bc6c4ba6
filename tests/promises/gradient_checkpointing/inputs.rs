//! What goes into a block and comes out of it beside plain tensors.

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

/// What the sequence becomes, and the states of the layer before.
type States = (Tensor<3>, Option<LstmState<2>>);

impl Mixed {
    fn init(device: &Device) -> Self {
        Self {
            first: LstmConfig::new(6, 6, true).init(device),
            second: LstmConfig::new(6, 6, true).init(device),
            attention: MultiHeadAttentionConfig::new(6, 2)
                .with_dropout(0.0)
                .init(device),
            output: LinearConfig::new(6, 1).init(device),
        }
    }

    fn loss(&self, x: Tensor<3>, in_blocks: bool) -> Tensor<1> {
        let recurrent = |layer: &Lstm, (x, state): States| {
            let (x, state) = layer.forward(x, state);
            (x, Some(state))
        };
        let attend = |attention: &MultiHeadAttention, x| attention.forward(MhaInput::self_attn(x));
        let reduce =
            |output: &Linear, (attended, Constant(powers)): (MhaOutput, Constant<Vec<i32>>)| {
                let y = output
                    .forward(attended.context)
                    .powi_scalar(powers[0])
                    .mean();
                y + attended.weights.powi_scalar(powers[1]).mean()
            };
        let powers = Constant(vec![2, 3]);
        let start: States = (x, None);
        if in_blocks {
            let states = gradient_checkpointing(&self.first, start, recurrent);
            let (x, state) = gradient_checkpointing(&self.second, states, recurrent);
            let attended = gradient_checkpointing(&self.attention, x, attend);
            let loss = gradient_checkpointing(&self.output, (attended, powers), reduce);
            loss + state.unwrap().cell.mean()
        } else {
            let states = recurrent(&self.first, start);
            let (x, state) = recurrent(&self.second, states);
            let attended = attend(&self.attention, x);
            reduce(&self.output, (attended, powers)) + state.unwrap().cell.mean()
        }
    }
}

fn structs_of_burn_and_constants_train_as_in_plain_calls(device: &Device) {
    let initial = Mixed::init(device);
    let x = Tensor::<3>::random([2, 2, 6], Distribution::Default, device);
    let train = |in_blocks: bool| {
        let model = copy(&initial, || Mixed::init(device));
        let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init());
        for _ in 0..3 {
            fused.step(RATE, |model| model.loss(x.clone(), in_blocks));
            assert_eq!(fused.last_step().without_gradient, 0);
        }
        fused.model()
    };
    assert_equal_weights(&train(false), &train(true));
}

on_every_backend!(structs_of_burn_and_constants_train_as_in_plain_calls);
