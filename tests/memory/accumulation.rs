//! Accumulated gradients take one buffer, or none.

use super::*;

/// The peak growth of two groups of four batches, after a first group.
fn peak_of_groups(
    mut fused: FusedOptimizer<Mlp>,
    loss: fn(&Mlp, Tensor<2>) -> Tensor<1>,
    batches: usize,
) -> f64 {
    let x = x(WIDTH);
    let mut group = || {
        for _ in 1..batches {
            fused.accumulate(|model| loss(model, x.clone())).unwrap();
        }
        fused.step(1e-3, |model| loss(model, x.clone())).unwrap();
    };
    group();
    multiple(peak(|| (0..2).for_each(|_| group())))
}

#[test]
fn accumulation_takes_one_buffer_and_none_in_optimizer_state() {
    alone!();
    let adam = backburn::optim::AdamConfig::new();
    let fused = || FusedOptimizer::new(mlp(), adam.init()).unwrap();
    let in_state = FusedOptimizer::accumulating_in_state(mlp(), adam.build()).unwrap();
    let plain = peak_of_groups(fused(), Mlp::loss, 1);
    let in_state = peak_of_groups(in_state, Mlp::loss, 4);
    assert!(plain < 0.25, "{plain} P");
    assert!(in_state < plain + 0.01, "{in_state} P, {plain} P without");
    let buffered = peak_of_groups(fused(), Mlp::loss, 4);
    assert!(buffered > plain + 0.9, "a buffer of {buffered} P shows");
    assert!(buffered < plain + 1.05, "{buffered} P, {plain} P without");
    // With blocks, the third and later micro-batches add to existing sums.
    let blocks = peak_of_groups(fused(), Mlp::recomputed_loss, 5);
    assert!(blocks < 1.3, "{blocks} P, {buffered} P without blocks");
}
