//! Unusual models, losses and plans.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use backburn::memory::MemoryError;
use backburn::optim::{AdamWConfig, LionConfig};
use burn::config::Config;

use crate::models::*;
use crate::{ENOUGH, alone, bytes, device, fixed, init, peak, plan, planner, trained};

use crate::common::*;

#[test]
fn a_model_in_which_nothing_is_trained_is_refused() {
    let _alone = alone();
    let is_refused = |refused| matches!(refused, Err(PlanError::Fused(FusedError::LossNotTracked)));
    let frozen = Planner::new(|| init::<Mlp>().no_grad(), AdamWConfig::new()).with_batch(8);
    let refused = frozen.plan(Mlp::loss, ENOUGH).map(drop);
    let is_frozen = matches!(
        refused,
        Err(PlanError::Fused(FusedError::NothingTrained { .. }))
    );
    assert!(is_frozen, "{refused:?}");
    let empty = Planner::new(Vec::<Linear>::new, AdamWConfig::new()).with_batch(8);
    let loss = |_: &Vec<Linear>, items: usize| Tensor::<1>::ones([items], &device()).mean();
    assert!(is_refused(empty.plan(loss, ENOUGH).map(drop)));
}

/// Nothing is trained while it is planned, and no byte depends on a value.
#[test]
fn a_loss_that_is_no_number_is_planned_for() {
    let _alone = alone();
    let clipping = Some(GlobalNormClippingConfig::Exact(1.0));
    for config in [
        FusedConfig::new(),
        FusedConfig::new().with_clipping(clipping),
    ] {
        let planned = |times: f32| {
            let planner = planner::<Mlp>().with_batch(8).with_config(config.clone());
            let plan = planner.plan(|model, items| model.loss(items) * times, ENOUGH);
            plan.unwrap().device_bytes
        };
        let (number, none) = (planned(1.0), planned(f32::NAN));
        assert!(number.abs_diff(none) < number / 50, "{number} and {none}");
    }
}

#[test]
fn weights_in_f16_are_planned_for() {
    let _alone = alone();
    let init = || cast(init::<Bag>(), FloatDType::F16).unwrap();
    let planner = Planner::new(init, AdamWConfig::new()).with_batch(Bag::BATCH);
    let whole = planner.plan(Bag::loss, ENOUGH).unwrap();
    for budget in bytes(&whole) {
        let plan = planner.plan(Bag::loss, budget + 30_000).unwrap();
        assert_eq!(plan.weights, None);
        let train = || {
            let mut fused = plan.fuse(init).unwrap();
            (0..2).for_each(|_| drop(fused.step_ok(1e-3, |model| model.loss(plan.batch))));
        };
        let taken = peak(train).1;
        let ratio = plan.device_bytes as f64 / taken as f64;
        assert!((0.99..=1.05).contains(&ratio), "{ratio:.3}\n{plan}");
    }
}

#[test]
fn a_budget_below_the_weights_is_refused_before_they_are_made() {
    let _alone = alone();
    let plan = plan::<Bag>(ENOUGH).unwrap();
    let weights = 4 * plan.model.elements;
    let before = peak(|| ()).1;
    let budget = before + weights / 2;
    let (refused, taken) = peak(|| crate::plan::<Bag>(budget));
    let Err(PlanError::NothingFits { least, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(least > before + weights, "{least}");
    assert!(taken < budget, "{taken} of {budget}");
}

#[test]
fn a_plan_is_made_on_another_thread_and_with_threads_in_the_loss() {
    let _alone = alone();
    let planned = || plan::<Bag>(ENOUGH).unwrap();
    let (plan, taken) = std::thread::spawn(move || {
        let plan = planned();
        let taken = trained::<Bag, _>(&plan);
        (plan, taken)
    })
    .join()
    .unwrap();
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
        (0..2).for_each(|_| drop(fused.step_ok(1e-3, |model| on_a_thread(model, plan.batch))));
    };
    let taken = peak(train).1;
    assert!(taken <= plan.device_bytes, "{taken} taken\n{plan}");
}

/// Between two passes of the first, where nothing records.
#[test]
fn two_planners_do_not_measure_each_other() {
    static REFUSED: Mutex<Option<bool>> = Mutex::new(None);
    let _alone = alone();
    let first = planner::<Bag>().with_progress(|_| {
        let second = plan::<Bag>(ENOUGH).map(drop);
        let is_refused = matches!(
            second,
            Err(PlanError::Memory(MemoryError::AlreadyRecording))
        );
        *REFUSED.lock().unwrap() = Some(is_refused);
    });
    first.plan(Bag::loss, ENOUGH).unwrap();
    assert_eq!(*REFUSED.lock().unwrap(), Some(true));
    // It is over with the first, or its panic.
    let panics = |_: &Bag, _| -> Tensor<1> { panic!("no loss") };
    let planner = planner::<Bag>();
    let panic = catch_unwind(AssertUnwindSafe(|| planner.plan(panics, ENOUGH).map(drop)));
    assert!(panic.is_err());
    plan::<Bag>(ENOUGH).unwrap();
}

#[test]
fn a_plan_of_a_model_without_blocks_names_none() {
    let _alone = alone();
    let whole = plan::<Bag>(ENOUGH).unwrap();
    for plan in [plan::<Bag>(bytes(&whole)[1] + 30_000).unwrap(), whole] {
        let keep = plan.config.gradient_checkpointing.keep_activations;
        assert!(keep.is_empty(), "{keep:?}");
    }
}

#[test]
fn a_plan_read_with_another_optimizer_is_refused_by_name() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let plan = plan::<Bag>(ENOUGH).unwrap();
    plan.save(&file).unwrap();
    let error = Plan::<LionConfig>::load(&file).unwrap_err().to_string();
    assert!(
        error.contains("`AdamWConfig`") && error.contains("`LionConfig`"),
        "{error}"
    );
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"AdamWConfig\"", "\"LionConfig\"")).unwrap();
    assert!(Plan::<AdamWConfig>::load(&file).is_err());
}

#[test]
fn numbers_that_are_none_in_a_plan_are_refused_by_where_they_are() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let plan = plan::<Bag>(ENOUGH).unwrap();
    plan.save(&file).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    for (from, to, words) in [
        ("\"batch\": 32", "\"batch\": -1", "integer `-1`"),
        ("\"batch\": 32", "\"batch\": 1.5", "floating point `1.5`"),
        ("\"weights\": null", "\"weights\": \"F7\"", "variant `F7`"),
        (
            "\"accumulation\": 1",
            "\"accumulation\": \"many\"",
            "string \"many\"",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let error = Plan::<AdamWConfig>::load(&file).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("line"), "{error}");
    }
}

/// By the parameter that it is about, or by the device.
#[test]
fn an_edited_plan_whose_parts_do_not_go_together_says_which() {
    let _alone = alone();
    let plan = plan::<Bag>(ENOUGH).unwrap();
    let mut edited = plan.clone();
    edited.config.offload = Some(OffloadConfig::new(Offload::States));
    let error = edited.fuse(init::<Bag>).map(drop).unwrap_err();
    assert_says(&error, "is the host itself");

    let formats = AdamWConfig::new().with_state_format(StateFormat::Bits8);
    let formats = formats.with_weight_format(WeightFormat::Split24);
    let mut edited = Plan {
        optimizer: formats,
        ..plan
    };
    let step = |plan: &Plan<AdamWConfig>| {
        let mut fused = plan.fuse(init::<Bag>).unwrap();
        fused.step_ok(1e-3, |model| model.loss(plan.batch));
    };
    let panic = catch_unwind(AssertUnwindSafe(|| step(&edited))).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    for words in ["`embedding.weight`", "bf16", "backburn::cast"] {
        assert_says(&text, words);
    }
    edited.weights = Some(FloatDType::BF16);
    step(&edited);
    // More blocks than there are, and bytes that do not exist, do no harm.
    edited.config.gradient_checkpointing.keep_activations = vec![false; 10_000];
    (edited.device_bytes, edited.taken) = (usize::MAX, 99);
    step(&edited);
    assert!(!edited.to_string().is_empty());
}

/// Where no pass ends well, it is unknown if the model has blocks.
#[test]
fn a_model_whose_blocks_were_not_measured_is_not_told_that_it_has_none() {
    let _alone = alone();
    let fused = plan::<Recurrent>(ENOUGH).unwrap().device_bytes;
    let mut refused = 0;
    for part in [5, 20, 30, 40, 45] {
        if let Err(error) = plan::<Recurrent>(fused * part / 100) {
            let text = error.to_string();
            assert!(!text.contains("No block"), "{text}");
            refused += 1;
        }
    }
    assert!(refused > 1);
    let planner = planner::<Plain>().with_order(&[Technique::Blocks]);
    let whole = planner.plan(Plain::loss, ENOUGH).unwrap().device_bytes;
    let refused = planner.plan(Plain::loss, whole * 9 / 10);
    let text = refused.unwrap_err().to_string();
    assert_says(&text, "No block");
}

/// Without a backward pass, nodes of the graph would stay.
#[test]
fn models_that_are_gone_are_not_planned_for() {
    let _alone = alone();
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
    let _alone = alone();
    let norm = |_| BatchNormConfig::new(16).init(&device());
    let init = || (0..2).map(norm).collect();
    let loss = |model: &Vec<BatchNorm>, items: usize| {
        let x = Tensor::<4>::ones([items, 16, 32, 32], &device());
        model
            .iter()
            .fold(x, |x, norm| norm.forward(x).tanh())
            .mean()
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
