//! Unusual models, losses and types.

use backburn::optim::AdamWConfig;

use crate::common::*;
use crate::models::*;
use crate::{
    ENOUGH, alone, bytes, device, fixed, in_one_thread, init, peak, plan, planner, trained,
};

/// Planning trains nothing, and no bytes depend on values.
#[test]
fn loss_that_is_nan_is_planned_for() {
    alone!();
    for config in [FusedConfig::new(), FusedConfig::exact(1.0)] {
        let planned = |times: f32| {
            let planner = planner::<Mlp>().with_batch(8).with_config(config.clone());
            let plan = planner.plan(|model, items| model.loss(items) * times, ENOUGH);
            plan.unwrap().device_bytes
        };
        let (number, nan) = (planned(1.0), planned(f32::NAN));
        assert!(number.abs_diff(nan) < number / 50, "{number} and {nan}");
    }
}

#[test]
fn weights_in_f16_are_planned_for() {
    alone!();
    let init = || cast(init::<Bag>(), FloatDType::F16).unwrap();
    let planner = Planner::new(init, AdamWConfig::new()).with_batch(Bag::BATCH);
    let whole = planner.plan(Bag::loss, ENOUGH).unwrap();
    for budget in bytes(&whole) {
        let plan = planner.plan(Bag::loss, budget + 30_000).unwrap();
        assert_eq!(plan.weights, None);
        let train = || {
            let mut fused = plan.fuse(init).unwrap();
            train_fused(&mut fused, 2, 1e-3, |model, _| model.loss(plan.batch));
        };
        let taken = peak(train).1;
        let ratio = plan.device_bytes as f64 / taken as f64;
        assert!((0.99..=1.05).contains(&ratio), "{ratio:.3}\n{plan}");
    }
}

/// In mixed precision, and in f64, whose states have no low-bit format.
#[test]
fn other_float_types_are_planned_for() {
    alone!();
    let in_bf16 = FusedConfig::new().with_compute_dtype(Some(FloatDType::BF16));
    for (dtype, computed, config) in [
        (FloatDType::F32, FloatDType::BF16, in_bf16),
        (FloatDType::F64, FloatDType::F64, FusedConfig::new()),
    ] {
        let init = || -> Linear {
            let layer: Linear = LinearConfig::new(64, 64).init(&device());
            cast(layer, dtype).unwrap()
        };
        let loss = |model: &Linear, items: usize| {
            let x = Tensor::<2>::ones([items, 64], &device());
            model.forward(x.cast(computed)).mean()
        };
        let planner = Planner::new(init, AdamWConfig::new()).with_config(config);
        let plan = planner.plan(loss, ENOUGH).unwrap();
        let has_codes = plan.candidates.iter().any(|it| it.name.contains("Bits8"));
        assert_eq!(has_codes, dtype == FloatDType::F32, "{plan}");
        let mut fused = plan.fuse(init).unwrap();
        fused.step(1e-3, |model| loss(model, plan.batch)).unwrap();
    }
}

#[test]
fn plan_on_another_thread_and_with_threads_in_loss_holds() {
    alone!();
    let planned = || plan::<Bag>(ENOUGH).unwrap();
    let on_another = std::thread::spawn(move || {
        let plan = planned();
        let taken = trained::<Bag, _>(&plan);
        (plan, taken)
    });
    let (plan, taken) = on_another.join().unwrap();
    assert_eq!(plan.config, planned().config);
    assert!(taken <= plan.device_bytes, "{taken} taken\n{plan}");

    let on_a_thread = |model: &Bag, items: usize| {
        let context = StepContext::current().expect("it is inside of a pass");
        let loss = || context.enter(|| model.loss(items));
        std::thread::scope(|scope| scope.spawn(loss).join().unwrap())
    };
    let plan = planner::<Bag>().plan(on_a_thread, ENOUGH).unwrap();
    let train = || {
        let mut fused = plan.fuse(init::<Bag>).unwrap();
        train_fused(&mut fused, 2, 1e-3, |model, _| {
            on_a_thread(model, plan.batch)
        });
    };
    let taken = peak(train).1;
    assert!(taken <= plan.device_bytes, "{taken} taken\n{plan}");
}

#[test]
fn plan_of_model_without_blocks_names_none() {
    alone!();
    let whole = plan::<Bag>(ENOUGH).unwrap();
    for plan in [plan::<Bag>(bytes(&whole)[1] + 30_000).unwrap(), whole] {
        let keep = plan.config.gradient_checkpointing.keep_activations;
        assert!(keep.is_empty(), "{keep:?}");
    }
}

/// Without a backward pass, nodes of the graph would stay.
#[test]
fn refused_plans_leave_no_bytes() {
    alone!();
    plan::<Recurrent>(ENOUGH).unwrap();
    let budget = peak(|| ()).1 + 1_200_000;
    let mut left = Vec::new();
    for _ in 0..4 {
        let refused = plan::<Recurrent>(budget);
        assert!(refused.is_err(), "{refused:?}");
        left.push(peak(|| ()).1);
    }
    assert!(left[3] < left[0] + (1 << 15), "{left:?}");
}

#[test]
fn plan_with_smaller_batches_names_batch_normalization() {
    alone!();
    let norm = |_| BatchNormConfig::new(16).init(&device());
    let init = || (0..2).map(norm).collect();
    let loss = |model: &Vec<BatchNorm>, items: usize| {
        let x = Tensor::<4>::ones([items, 16, 32, 32], &device());
        let run = |x, norm: &BatchNorm| norm.forward(x).tanh();
        model.iter().fold(x, run).mean()
    };
    let planner = Planner::new(init, AdamWConfig::new()).with_batch(16);
    let whole = planner.plan(loss, ENOUGH).unwrap();
    assert!(whole.notes.is_empty(), "{whole}");
    let fixed = fixed();
    let budget = fixed + (whole.device_bytes - fixed) * 3 / 4;
    let plan = planner.plan(loss, budget).unwrap();
    assert_eq!(plan.accumulation, 2, "{plan}");
    assert_says(&plan, "batch normalization");
    let planner = crate::planner::<Plain>().with_order(&[Technique::MicroBatches]);
    let whole = planner.plan(Plain::loss, ENOUGH).unwrap().device_bytes;
    let plan = planner.plan(Plain::loss, whole * 9 / 10).unwrap();
    assert!(plan.accumulation > 1 && plan.notes.is_empty(), "{plan}");
}

/// Two items are measured before a large part of a batch: one item does not predict many.
#[test]
fn batch_without_small_parts_is_planned_within_budget() {
    alone!();
    let init = || linears(4, 64, &device());
    let loss = |model: &Vec<Linear>, items: usize| {
        let x = Tensor::<3>::ones([items, 2048, 64], &device());
        let block = |layer: &Linear, x: Tensor<3>| layer.forward(x).tanh();
        let run = |x, layer| gradient_checkpointing(layer, x, block);
        model.iter().fold(x, run).mean()
    };
    in_one_thread(|| {
        let budget = fixed() + 9_000_000;
        for (batch, part) in [(13, 1), (46, 2), (97, 1)] {
            let planner = Planner::new(init, AdamWConfig::new()).with_batch(batch);
            let (plan, taken) = peak(|| planner.plan(loss, budget).unwrap());
            assert!(taken <= budget, "{batch} items: planning took {taken}");
            assert_eq!(plan.batch, part);
        }
    });
}
