//! A planned training equals stock Burn.

use std::path::Path;

use crate::common::*;
use crate::models::*;
use crate::{ENOUGH, alone, bytes, device, init, plan, planner};

/// Returns the model in `file`, with its ids and with its own running statistics.
fn copy<K: Kind>(file: &Path) -> K {
    init::<K>().try_load_file(file).unwrap()
}

fn stock<K: Kind>(mut model: K, mut optimizer: ModuleOptimizer, batch: usize, parts: usize) -> K {
    for _ in 0..3 {
        let mut sums = GradientsAccumulator::new();
        for _ in 0..parts {
            let loss = match parts {
                1 => model.loss(batch),
                _ => model.loss(batch) / parts as f32,
            };
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            sums.accumulate(&model, gradients);
        }
        model = optimizer.step(1e-3, model, sums.grads());
    }
    model
}

/// Trains in stock Burn, and by a plan for the bytes of a candidate.
fn equals_stock<K: Kind>(candidate: usize) {
    let whole = plan::<K>(ENOUGH).unwrap();
    let plan = match candidate {
        0 => whole,
        _ => plan::<K>(bytes(&whole)[candidate] + 30_000).unwrap(),
    };
    assert_eq!(plan.weights, None, "{plan}");
    device().seed(7);
    let folder = tempfile::tempdir().unwrap();
    let initial = folder.path().join("initial.bpk");
    init::<K>().save_file(&initial).unwrap();
    let optimizer = backburn::optim::AdamWConfig::new().init();
    let model = copy::<K>(&initial);
    let expected = stock(model, optimizer, plan.batch, plan.accumulation);
    let mut fused: FusedOptimizer<K> = plan.fuse(|| copy(&initial)).unwrap();
    let parts = plan.accumulation as f32;
    let loss = |model: &K| match plan.accumulation {
        1 => model.loss(plan.batch),
        _ => model.loss(plan.batch) / parts,
    };
    for _ in 0..3 {
        (1..plan.accumulation).for_each(|_| drop(fused.accumulate(loss).unwrap()));
        fused.step(1e-3, loss).unwrap();
    }
    // Burn merges the running statistics of the last pass when `valid` is called.
    assert_equal_weights(&expected.valid(), &fused.valid());
}

#[test]
fn exact_plan_equals_stock() {
    alone!();
    equals_stock::<Mlp>(0);
    equals_stock::<Mlp>(1);
    equals_stock::<Plain>(0);
    equals_stock::<Convolutional>(0);
    equals_stock::<Convolutional>(1);
    equals_stock::<Adversarial>(1);
}

#[test]
fn planned_micro_batches_equal_stock() {
    alone!();
    equals_stock::<Mlp>(2);
    equals_stock::<Plain>(1);
}

#[test]
fn plan_for_another_device_equals_stock_there() {
    alone!();
    let [_, there] = cpus();
    let planner = planner::<Plain>().with_device(&there);
    let plan = planner.plan(Plain::loss, ENOUGH).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let initial = folder.path().join("initial.bpk");
    init::<Plain>().save_file(&initial).unwrap();
    let optimizer = backburn::optim::AdamWConfig::new().init();
    let model = copy::<Plain>(&initial).fork(&there);
    let expected = stock(model, optimizer, plan.batch, plan.accumulation);
    let mut fused = plan.fuse_on(|| copy::<Plain>(&initial), &there).unwrap();
    assert_eq!(plan.accumulation, 1, "{plan}");
    for _ in 0..3 {
        fused.step(1e-3, |model| model.loss(plan.batch)).unwrap();
    }
    assert_equal_weights(&expected.valid(), &fused.valid());
}
