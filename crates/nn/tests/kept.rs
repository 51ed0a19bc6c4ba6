//! The bytes that are allocated between the passes: those of the README, and the output. In a process of its own.

#![cfg(feature = "flex")]

use std::sync::Mutex;

use backburn_nn::{
    AttentionOptions, LinearCrossEntropyOptions, attention, embedding, geglu, layer_norm, linear,
    linear_cross_entropy, rms_norm, swiglu,
};
use burn::module::{Param, ParamId};
use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig, RmsNormConfig, SwiGluConfig};
use burn::tensor::{DType, Device, Int, Tensor};
use peak_alloc::PeakAlloc;

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

/// Bytes of the nodes of the graph.
const NODES: usize = 8 * 1024;

const ROWS: usize = 128;
const DIM: usize = 64;

fn leaf<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::ones(shape, &Device::flex().autodiff()).require_grad()
}

/// Checks the bytes of `numbers` in f32, without those of the inputs.
fn assert_kept<const D: usize>(name: &str, numbers: usize, operation: impl Fn() -> Tensor<D>) {
    let kept = || {
        let before = BYTES.current_usage();
        let output = operation();
        let kept = BYTES.current_usage().saturating_sub(before);
        output.sum().backward();
        kept
    };
    let expected = 4 * numbers;
    // A thread of the pool allocates its buffers when it first computes.
    let mut kept: Vec<_> = (0..11).map(|_| kept()).collect();
    kept.sort_unstable();
    assert!(
        (expected..expected + NODES).contains(&kept[5]),
        "{name}: {kept:?} bytes, expected {expected}"
    );
}

/// Runs one test at a time, because they share the counter.
static ALONE: Mutex<()> = Mutex::new(());

/// Operations of Burn under autodiff would leave nodes in its graph until the next backward pass.
#[test]
fn inference_leaves_no_bytes() {
    let _alone = ALONE.lock();
    let f64s = |shape: [usize; 4]| {
        let options = (&Device::flex(), DType::F64);
        Tensor::<4>::ones(shape, options)
    };
    let norm = RmsNormConfig::new(8).init(&Device::flex());
    let run = || {
        let x = rms_norm(&norm, f64s([1, 2, 4, 8]));
        let x = attention(x.clone(), x.clone(), x, None, AttentionOptions::default());
        let x = geglu(x.clone(), x, false).reshape([8, 8]);
        let (head, targets) = (x.clone(), Tensor::<1, Int>::zeros([8], &x.device()));
        drop(linear_cross_entropy(
            x,
            head,
            targets,
            None,
            &LinearCrossEntropyOptions::default(),
        ));
    };
    run();
    let before = BYTES.current_usage();
    (0..100).for_each(|_| run());
    let left = BYTES.current_usage().saturating_sub(before);
    assert!(left < NODES, "{left} bytes");
}

#[test]
fn operations_keep_the_bytes_of_the_table() {
    let _alone = ALONE.lock();
    let device = Device::flex().autodiff();
    let all = ROWS * DIM;
    let x = leaf([1, ROWS, DIM]);
    let norm = RmsNormConfig::new(DIM).init(&device);
    assert_kept("rms_norm", all, || rms_norm(&norm, x.clone()));
    let norm = LayerNormConfig::new(DIM).init(&device);
    assert_kept("layer_norm", all, || layer_norm(&norm, 1e-5, x.clone()));
    let layer = LinearConfig::new(DIM, DIM).init(&device);
    assert_kept("linear", all, || linear(&layer, x.clone()));
    let layers = SwiGluConfig::new(DIM, DIM).init(&device);
    assert_kept("swiglu", 3 * all, || swiglu(&layers, x.clone()));
    let up = leaf([1, ROWS, DIM]);
    assert_kept("geglu", all, || geglu(x.clone(), up.clone(), true));

    let heads = leaf([1, 4, ROWS, DIM / 4]);
    let few = leaf([1, 2, ROWS, DIM / 4]);
    let options = AttentionOptions {
        is_causal: true,
        ..Default::default()
    };
    assert_kept("attention", all, || {
        attention(heads.clone(), few.clone(), few.clone(), None, options)
    });

    let (hidden, head) = (leaf([ROWS, DIM]), leaf([2 * ROWS, DIM]));
    let targets = Tensor::<1, Int>::arange(0..ROWS as i64, &device);
    let options = LinearCrossEntropyOptions::default();
    let losses = |head: &Tensor<2>| {
        linear_cross_entropy(
            hidden.clone(),
            head.clone(),
            targets.clone(),
            None,
            &options,
        )
    };
    assert_kept("linear_cross_entropy", 3 * all, || losses(&head));
    let frozen = Tensor::from_inner(head.clone().inner());
    assert_kept("linear_cross_entropy, frozen head", all, || losses(&frozen));
    let many = Tensor::<2>::zeros([256 * ROWS, DIM], (&frozen.device(), DType::BF16));
    let copy = 4 * 256 * ROWS * DIM;
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    let options = LinearCrossEntropyOptions {
        chunk_size: 1,
        ..options
    };
    drop(linear_cross_entropy(
        hidden.clone(),
        many,
        targets.clone(),
        None,
        &options,
    ));
    let peak = BYTES.peak_usage() - before;
    assert!(peak < copy, "{peak} bytes: the head is copied in f32");

    let table = EmbeddingConfig::new(16 * ROWS, DIM).init(&device);
    let tokens = Tensor::<2, Int>::zeros([1, ROWS], &device);
    assert_kept("embedding", all, || embedding(&table, tokens.clone()));
    let sum = embedding(&table, tokens.clone()).sum();
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    sum.backward();
    let gradient = 4 * 16 * all;
    let peak = BYTES.peak_usage() - before;
    assert!((gradient..2 * gradient).contains(&peak), "{peak} bytes");

    // The gradient is added to that of the head, which the loss has computed.
    let weight = table.weight.val() * 1;
    let mut tied = table.clone();
    tied.weight = Param::initialized(ParamId::new(), weight.clone());
    let hidden = embedding(&tied, tokens).flatten(0, 1);
    let loss = linear_cross_entropy(hidden, weight, targets, None, &options);
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    loss.backward();
    let peak = BYTES.peak_usage() - before;
    assert!(peak < gradient / 4, "{peak} bytes: there are two gradients");
}
