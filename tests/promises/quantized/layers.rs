//! Burn's layers on a quantized base compute as with LoRA on the dequantized weights.

use std::fmt::Display;

use burn::nn::attention::{CrossAttentionConfig, MhaInput, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv1d, Conv1dConfig, Conv2d, Conv2dConfig};
use burn::nn::transformer::{
    PositionWiseFeedForwardConfig, TransformerDecoderConfig, TransformerDecoderInput,
    TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{
    BiGruConfig, BiLstmConfig, BiRnnConfig, GruConfig, LstmConfig, RnnConfig, SwiGluConfig,
};
use burn::tensor::Tolerance;

use super::*;

const MODEL: usize = 8;

fn x() -> Tensor<3> {
    Tensor::random([2, 5, MODEL], Distribution::Default, &flex())
}

/// Panics unless the quantized layer has the display, the results and the trained factors of LoRA on its dequantized
/// weights.
#[track_caller]
fn assert_as_lora<M: Module + Display>(dense: M, forward: impl Fn(&M) -> Tensor<3>) {
    let name = dense.to_string();
    for format in FORMATS {
        let quantized = with_quantized_base(dense.clone(), format);
        let expected = loras_of(&quantized);
        assert_eq!(quantized.to_string(), expected.to_string());
        assert_eq!(quantized.num_params(), expected.num_params(), "{name}");
        let of = |model: &M| forward(model).into_data();
        assert_eq!(of(&expected), of(&quantized), "{name}");
        let there_and_back = quantized.valid().train();
        assert_eq!(of(&expected), of(&there_and_back), "{name}");
        let loss = |model: &M, _| forward(model).square().mean();
        let train = |model: &M| {
            let trained = train_stock(model.clone(), &mut AdamConfig::new().init(), 2, RATE, loss);
            factors_of(&trained)
        };
        let expected = train(&expected);
        assert_eq!(expected, train(&quantized), "{name}");
        let mut fused = FusedOptimizer::new(quantized, AdamConfig::new().init()).unwrap();
        train_fused(&mut fused, 2, RATE, loss);
        for ((path, expected), (_, found)) in expected.iter().zip(&factors_of(&fused.model())) {
            assert!(!path.is_empty());
            // The gradients of recurrent weights are sums in another order.
            found.assert_approx_eq::<f32>(expected, Tolerance::absolute(1e-5));
        }
    }
}

#[test]
fn quantized_matrix_layers_compute_as_lora() {
    let (device, x) = (flex(), x());
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        let linear = LinearConfig::new(MODEL, 6)
            .with_layout(layout)
            .init(&device);
        assert_as_lora(linear, |layer: &Linear| layer.forward(x.clone()));
        let swiglu = SwiGluConfig::new(MODEL, 6)
            .with_layout(layout)
            .init(&device);
        assert_as_lora(swiglu, |layer| layer.forward(x.clone()));
    }
    let tokens = Tensor::<1, Int>::arange(0..10, &device).reshape([2, 5]);
    let embedding = EmbeddingConfig::new(10, MODEL).init(&device);
    assert_as_lora(embedding, |layer| layer.forward(tokens.clone()));
}

#[test]
fn quantized_attention_layers_compute_as_lora() {
    let (device, x) = (flex(), x());
    let attention = MultiHeadAttentionConfig::new(MODEL, 2).with_dropout(0.0);
    assert_as_lora(attention.init(&device), |layer| {
        layer.forward(MhaInput::self_attn(x.clone())).context
    });
    let cross = CrossAttentionConfig::new(MODEL, MODEL, 2, 1, 4).with_dropout(0.0);
    assert_as_lora(cross.init(&device), |layer| {
        layer.forward(x.clone(), x.clone(), None)
    });
    let feed_forward = PositionWiseFeedForwardConfig::new(MODEL, 20).with_dropout(0.0);
    assert_as_lora(feed_forward.init(&device), |layer| layer.forward(x.clone()));
    let encoder = TransformerEncoderConfig::new(MODEL, 20, 2, 1).with_dropout(0.0);
    let encoder = encoder.init(&device);
    assert_as_lora(encoder.clone(), |layer| {
        layer.forward(TransformerEncoderInput::new(x.clone()))
    });
    assert_as_lora(encoder, |layer| {
        let input = TransformerEncoderInput::new(x.clone());
        layer.forward_autoregressive_inference(input, &mut layer.new_autoregressive_cache())
    });
    let decoder = TransformerDecoderConfig::new(MODEL, 20, 2, 1).with_dropout(0.0);
    let decoder = decoder.init(&device);
    assert_as_lora(decoder.clone(), |layer| {
        layer.forward(TransformerDecoderInput::new(x.clone(), x.clone()))
    });
    assert_as_lora(decoder, |layer| {
        let input = TransformerDecoderInput::new(x.clone(), x.clone());
        layer.forward_autoregressive_inference(input, &mut layer.new_autoregressive_cache())
    });
}

#[test]
fn quantized_recurrent_layers_compute_as_lora() {
    let (device, x) = (flex(), x());
    let rnn = RnnConfig::new(MODEL, 6, true).init(&device);
    assert_as_lora(rnn, |layer| layer.forward(x.clone(), None).0);
    let rnn = BiRnnConfig::new(MODEL, 6, true).init(&device);
    assert_as_lora(rnn, |layer| layer.forward(x.clone(), None).0);
    for reset_after in [false, true] {
        let gru = GruConfig::new(MODEL, 6, true).with_reset_after(reset_after);
        assert_as_lora(gru.init(&device), |layer| layer.forward(x.clone(), None));
    }
    let gru = BiGruConfig::new(MODEL, 6, true).init(&device);
    assert_as_lora(gru, |layer| layer.forward(x.clone(), None).0);
    let lstm = LstmConfig::new(MODEL, 6, true).init(&device);
    assert_as_lora(lstm, |layer| layer.forward(x.clone(), None).0);
    let lstm = BiLstmConfig::new(MODEL, 6, true).init(&device);
    assert_as_lora(lstm, |layer| layer.forward(x.clone(), None).0);
}

/// Convolutions, which stay in floats, and a linear layer.
#[derive(Module, Debug)]
struct Convolutions {
    first: Conv1d,
    second: Conv2d,
    head: Linear,
}

#[test]
fn convolutions_beside_quantized_layer_stay_in_floats() {
    let (device, x) = (flex(), x());
    let model = Convolutions {
        first: Conv1dConfig::new(5, 4, 3).init(&device),
        second: Conv2dConfig::new([4, 3], [1, 1]).init(&device),
        head: LinearConfig::new(6, 4).init(&device),
    };
    let quantized = with_quantized_base(model.clone(), BaseFormat::Bits4);
    let of = |model: &Convolutions| model.first.weight.val().into_data();
    assert_eq!(of(&quantized), of(&model));
    assert_as_lora(model, |model| {
        let x = model.first.forward(x.clone()).unsqueeze_dim::<4>(3);
        let x = model.second.forward(x).squeeze_dim::<3>(3);
        model.head.forward(x)
    });
}
