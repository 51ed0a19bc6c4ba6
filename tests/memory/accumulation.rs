//! Accumulated gradients take one buffer, or none.

use super::*;

/// The most bytes above parameters and state of two steps after the first, each of four batches.
fn peak_of_groups(mut fused: FusedOptimizer<Mlp>, x: &Tensor<2>) -> usize {
    let mut group = || {
        for _ in 0..3 {
            fused.accumulate_ok(|model| model.loss(x.clone()));
        }
        fused.step_repeatable_ok(1e-3, |model| model.loss(x.clone()));
    };
    group();
    peak(|| (0..2).for_each(|_| group()))
}

#[test]
fn accumulation_takes_one_buffer_and_in_the_optimizer_state_none() {
    let _alone = ALONE.lock();
    let (depth, width) = (8, 128);
    let x = x(width);
    let model = || Mlp::init(depth, width, &device());
    let parameters = 4 * model().num_params();
    let adam = backburn::optim::AdamConfig::new();

    let buffered = peak_of_groups(FusedOptimizer::new_ok(model(), adam.init()), &x);
    let in_state = FusedOptimizer::accumulating_in_state_ok(model(), adam.build());
    let in_state = peak_of_groups(in_state, &x);
    let mut plain = FusedOptimizer::new_ok(model(), adam.init());
    plain.step_ok(1e-3, |model| model.loss(x.clone()));
    let plain = peak(|| drop(plain.step_ok(1e-3, |model| model.loss(x.clone()))));

    let multiple = |bytes: usize| bytes as f64 / parameters as f64;
    let [buffered, in_state, plain] = [buffered, in_state, plain].map(multiple);
    assert!(plain < 0.25, "{plain} P");
    assert!(in_state < plain + 0.01, "{in_state} P, {plain} P without");
    assert!(buffered > plain + 0.9, "a buffer of {buffered} P shows");
    assert!(buffered < plain + 1.05, "{buffered} P, {plain} P without");
}

/// The micro-batches from the third on, which add to what is there already.
#[test]
fn accumulation_beside_blocks_that_run_twice_takes_one_buffer() {
    let _alone = ALONE.lock();
    let (depth, width) = (8, 128);
    let x = x(width);
    let parameters = 4 * Mlp::init(depth, width, &device()).num_params();
    let peak_beside = |loss: fn(&Mlp, Tensor<2>) -> Tensor<1>| {
        let model = Mlp::init(depth, width, &device());
        let mut fused = FusedOptimizer::new_ok(model, AdamConfig::new().init());
        fused.step_ok(1e-3, |model| loss(model, x.clone()));
        let peak = peak(|| {
            for _ in 0..4 {
                fused.accumulate_ok(|model| loss(model, x.clone()));
            }
        });
        peak as f64 / parameters as f64
    };
    let [plain, blocks] = [Mlp::loss, Mlp::recomputed_loss].map(peak_beside);
    assert!(plain < 1.3, "{plain:.2} P");
    assert!(blocks < 1.3, "{blocks:.2} P, {plain:.2} without blocks");
}
