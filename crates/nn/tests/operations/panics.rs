//! Invalid arguments.

use backburn_base::caught::catch_message;
use backburn_nn::{
    AttentionOptions, LinearCrossEntropyOptions, attention, geglu, layer_norm, linear,
    linear_cross_entropy, rms_norm,
};
use burn::module::{Lora, LoraAdapter, Module, Param};
use burn::nn::{LayerNormConfig, Linear, LinearConfig, RmsNormConfig};
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::linear::AttachAdapter;

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, &Device::flex())
}

fn attend(query: [usize; 4], key: [usize; 4], value: [usize; 4], mask: Option<[usize; 4]>) {
    let mask = mask.map(|shape| Tensor::<4, Bool>::full(shape, false, &Device::flex()));
    let options = AttentionOptions::default();
    attention(zeros(query), zeros(key), zeros(value), mask, options);
}

/// Computes a layer from 4 to 5 with an adapter of factors of these shapes.
fn with_adapter(a: [usize; 2], b: [usize; 2]) {
    let config = LinearConfig::new(4, 5).with_bias(false);
    let layer: Linear = config.init(&Device::flex());
    let [a, b] = [a, b].map(|shape| Param::from_tensor(zeros(shape)));
    let adapter = LoraAdapter { a, b, scale: 0.5 };
    let _ = linear(
        &layer.apply_reparameterization(AttachAdapter(adapter)),
        zeros([2, 4]),
    );
}

/// Computes the loss of 3 tokens, with 5 classes and a width of 4 unless the arguments say otherwise.
fn lose(
    weight: [usize; 2],
    targets: &[i64],
    weights: Option<usize>,
    edit: impl Fn(&mut LinearCrossEntropyOptions),
) {
    let mut options = LinearCrossEntropyOptions::default();
    edit(&mut options);
    let targets = Tensor::<1, Int>::from_data(targets, &Device::flex());
    let weights = weights.map(|length| zeros([length]));
    linear_cross_entropy(zeros([3, 4]), zeros(weight), targets, weights, &options);
}

#[test]
fn invalid_argument_panics_with_its_name() {
    let device = Device::flex();
    let table: [(&[&str], &dyn Fn()); _] = [
        (&["`x`", "`norm`"], &|| {
            let _ = rms_norm(&RmsNormConfig::new(4).init(&device), zeros([2, 3]));
        }),
        (&["`head_dim` is 0"], &|| {
            attend([1, 1, 3, 0], [1, 1, 3, 0], [1, 1, 3, 4], None);
        }),
        (&["`x`", "`norm`"], &|| {
            let norm = LayerNormConfig::new(4).init(&device);
            let _ = layer_norm(&norm, 1e-5, zeros([2, 3]));
        }),
        (&["`x`", "`layer`"], &|| {
            let _ = linear(&LinearConfig::new(4, 5).init(&device), zeros([2, 3]));
        }),
        (&["`x`", "`layer`"], &|| {
            let layer: Linear = LinearConfig::new(4, 5).init(&device);
            let _ = linear(&layer.apply_lora(Lora::new(2, 4.0)), zeros([2, 3]));
        }),
        (&["bias", "`layer`"], &|| {
            let mut layer: Linear = LinearConfig::new(3, 5).init(&device);
            layer.bias = Some(Param::from_tensor(zeros([10]).narrow(0, 0, 3)));
            let _ = linear(&layer, zeros([2, 3]));
        }),
        (&["factors", "`layer`"], &|| with_adapter([6, 2], [2, 8])),
        (&["factors", "`layer`"], &|| with_adapter([4, 2], [3, 5])),
        (&["factors", "`layer`"], &|| with_adapter([3, 2], [2, 5])),
        (&["`beta`", "`norm`"], &|| {
            let mut norm = LayerNormConfig::new(4).init(&device);
            norm.beta = Some(Param::from_tensor(zeros([5])));
            let _ = layer_norm(&norm, 1e-5, zeros([2, 4]));
        }),
        (&["`gate`", "`up`"], &|| {
            let _ = geglu(zeros([2, 3]), zeros([3, 2]), true);
        }),
        (&["`query`", "`key`"], &|| {
            attend([1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4], None);
        }),
        (&["`key`", "`value`"], &|| {
            attend([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 2, 4], None);
        }),
        (&["`query`", "`key`"], &|| {
            attend([1, 3, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], None);
        }),
        (&["`query`", "`key`"], &|| {
            attend([1, 3, 3, 4], [1, 0, 3, 4], [1, 0, 3, 4], None);
        }),
        (&["`mask`"], &|| {
            let shape = [1, 2, 3, 4];
            attend(shape, shape, shape, Some([1, 2, 3, 4]));
        }),
        (&["`mask`"], &|| {
            let shape = [3, 2, 3, 4];
            attend(shape, shape, shape, Some([2, 1, 3, 3]));
        }),
        (&["`window`"], &|| {
            let all = [(); 3].map(|()| zeros([1, 1, 2, 2]));
            let [query, key, value] = all;
            let options = AttentionOptions {
                window: Some(0),
                ..Default::default()
            };
            attention(query, key, value, None, options);
        }),
        (&["`hidden`", "`weight`"], &|| {
            lose([5, 3], &[0; 3], None, |_| {});
        }),
        (&["`targets`"], &|| lose([5, 4], &[0; 2], None, |_| {})),
        (&["`weights`"], &|| lose([5, 4], &[0; 3], Some(2), |_| {})),
        (&["`targets`", "-100", "`ignored`"], &|| {
            lose([5, 4], &[0, -100, 0], None, |_| {});
        }),
        (&["`targets`", "5 classes"], &|| {
            lose([5, 4], &[0, 5, 0], None, |options| {
                options.ignored = Some(-100)
            });
        }),
        (&["`chunk_size`"], &|| {
            lose([5, 4], &[0; 3], None, |options| options.chunk_size = 0);
        }),
        (&["`smoothing`"], &|| {
            lose([5, 4], &[0; 3], None, |options| options.smoothing = 1.5);
        }),
        (&["`soft_cap`"], &|| {
            lose([5, 4], &[0; 3], None, |options| {
                options.soft_cap = Some(0.0)
            });
        }),
        (&["`soft_cap`", "f32"], &|| {
            lose([5, 4], &[0; 3], None, |options| {
                options.soft_cap = Some(1e39)
            });
        }),
    ];
    for (index, (names, call)) in table.into_iter().enumerate() {
        let message = catch_message(call).expect_err(&format!("{index} panics"));
        for name in names {
            assert!(message.contains(name), "{index}: {message}");
        }
    }
}
