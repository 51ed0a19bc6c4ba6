//! The logits of a large vocabulary are never allocated as a whole.

use burn::nn::loss::CrossEntropyLossConfig;

use super::*;

const TOKENS: usize = 512;
const CHUNK: usize = 64;
const DIM: usize = 4;
const CLASSES: usize = 4096;
/// Bytes of the logits of a token.
const LOGITS: usize = 4 * CLASSES;

#[test]
fn chunked_loss_holds_logits_of_one_chunk() {
    alone!();
    let head = LinearConfig::new(DIM, CLASSES).init(&device());
    let hidden = Tensor::<2>::random([TOKENS, DIM], Distribution::Default, &device());
    let targets = Tensor::<1, Int>::arange(0..TOKENS as i64, &device());
    let mut fused = FusedOptimizer::new(head, SgdConfig::new().init()).unwrap();
    let loss = LinearCrossEntropyLossConfig::new()
        .with_chunk_size(CHUNK)
        .init();
    let mut step = |whole: bool| {
        peak(|| {
            fused
                .step(0.1, |head| match whole {
                    true => CrossEntropyLossConfig::new()
                        .init(&device())
                        .forward(head.forward(hidden.clone()), targets.clone()),
                    false => loss.forward(head, hidden.clone(), targets.clone()),
                })
                .unwrap();
        })
    };
    // The maximum of some runs: bytes that other threads release during a run reduce its count.
    let whole = (0..4).map(|_| step(true)).max().unwrap();
    // The minimum of some runs: a backend thread allocates its buffer for matrix products in its first product.
    let chunked = (0..4).map(|_| step(false)).min().unwrap();
    assert!(whole > 3 * TOKENS * LOGITS, "{whole} bytes as a whole");
    assert!(chunked < 6 * CHUNK * LOGITS, "{chunked} bytes in chunks");
}
