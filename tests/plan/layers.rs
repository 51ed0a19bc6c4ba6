//! Models of a few layers, with what the others don't have: heavy items, batches without small parts, other types.

use backburn::optim::AdamWConfig;

use crate::{ENOUGH, alone, device, fixed, in_one_thread, peak};

use crate::common::*;

/// Two items are measured before a large part of a batch: one item does not predict many.
#[test]
fn a_batch_that_has_no_small_parts_is_planned_within_the_budget() {
    let _alone = alone();
    let init = || -> Vec<Linear> {
        let layers = (0..4).map(|_| LinearConfig::new(64, 64).init(&device()));
        layers.collect()
    };
    let loss = |model: &Vec<Linear>, items: usize| {
        let x = Tensor::<3>::ones([items, 2048, 64], &device());
        let block = |layer: &Linear, x: Tensor<3>| layer.forward(x).tanh();
        let layers = model.iter();
        layers
            .fold(x, |x, layer| gradient_checkpointing(layer, x, block))
            .mean()
    };
    in_one_thread(|| {
        let budget = fixed() + 9_000_000;
        for (batch, part) in [(13, 1), (46, 2), (97, 1)] {
            let planner = Planner::new(init, AdamWConfig::new()).with_batch(batch);
            let (plan, of_planning) = peak(|| planner.plan(loss, budget).unwrap());
            assert!(
                of_planning <= budget,
                "{batch} items: planning took {of_planning}"
            );
            assert_eq!(plan.batch, part);
        }
    });
}

/// An item of which no pass comes to its end.
#[test]
fn an_item_that_does_not_fit_says_what_it_takes_at_least() {
    let _alone = alone();
    let init = || -> Linear { LinearConfig::new(64, 64).init(&device()) };
    let loss = |model: &Linear, items: usize| {
        let x = Tensor::<2>::ones([40_000 * items, 64], &device());
        model.forward(x).tanh().mean()
    };
    let of_item = 4 * 64 * 40_000;
    let budget = fixed() + of_item / 2;
    let planner = Planner::new(init, AdamWConfig::new());
    let refused = planner.plan(loss, budget);
    let Err(PlanError::NothingFits { least, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(least > of_item, "{least}");
}

#[test]
fn mixed_precision_is_planned_for() {
    let _alone = alone();
    let init = || -> Linear { LinearConfig::new(64, 64).init(&device()) };
    let loss = |model: &Linear, items: usize| {
        let x = Tensor::<2>::ones([items, 64], &device()).cast(FloatDType::BF16);
        model.forward(x).mean()
    };
    let config = FusedConfig::new().with_compute_dtype(Some(FloatDType::BF16));
    let planner = Planner::new(init, AdamWConfig::new()).with_config(config);
    let plan = planner.plan(loss, ENOUGH).unwrap();
    let mut fused = plan.fuse(init).unwrap();
    fused.step_ok(1e-3, |model| loss(model, plan.batch));
}

/// There are no codes for states in f64.
#[test]
fn weights_in_f64_are_planned_for_without_formats() {
    let _alone = alone();
    let init = || -> Linear {
        let layer: Linear = LinearConfig::new(64, 64).init(&device());
        cast(layer, FloatDType::F64).unwrap()
    };
    let loss = |model: &Linear, items: usize| {
        let x = Tensor::<2>::ones([items, 64], (&device(), DType::F64));
        model.forward(x).mean()
    };
    let plan = Planner::new(init, AdamWConfig::new()).plan(loss, ENOUGH);
    let plan = plan.unwrap();
    assert!(
        plan.candidates.iter().all(|it| !it.name.contains("Bits8")),
        "{plan}"
    );
    plan.fuse(init)
        .unwrap()
        .step_ok(1e-3, |model| loss(model, plan.batch));
}
