//! Refusals of the planner, with their reasons.

use std::panic::{AssertUnwindSafe, catch_unwind};

use backburn::memory::MemoryRecorder;
use backburn::optim::{AdamWConfig, MuonConfig};
use burn::config::Config;

use crate::models::*;
use crate::{ENOUGH, alone, device, init, plan, planner};

use crate::common::*;

#[test]
fn a_budget_or_a_batch_of_zero_is_refused() {
    let _alone = alone();
    let error = plan::<Mlp>(0).unwrap_err();
    assert_matches!(error, PlanError::Invalid { .. });
    assert_says(&error, "budget is 0");
    let planner = planner::<Mlp>().with_batch(0);
    let error = planner.plan(Mlp::loss, ENOUGH).unwrap_err();
    assert_matches!(error, PlanError::Invalid { .. });
    assert_says(&error, "batch has 0 items");
}

#[test]
fn a_loss_that_does_not_depend_on_the_model_is_refused() {
    let _alone = alone();
    let constant = |_: &Mlp, items: usize| Tensor::<1>::ones([items], &device()).mean();
    let refused = planner::<Mlp>().plan(constant, ENOUGH);
    let is_refused = matches!(refused, Err(PlanError::Fused(FusedError::LossNotTracked)));
    assert!(is_refused, "{refused:?}");

    let leaf = |_: &Mlp, _| Tensor::<1>::ones([1], &device()).require_grad() * 2.0;
    let refused = planner::<Mlp>().plan(leaf, ENOUGH);
    let is_refused = matches!(
        refused,
        Err(PlanError::Fused(FusedError::LossWithoutParameters { .. }))
    );
    assert!(is_refused, "{refused:?}");
}

#[test]
fn a_batch_of_one_that_does_not_fit_says_that_it_cannot_be_split() {
    let _alone = alone();
    let planner = planner::<Plain>().with_batch(1);
    let whole = planner.plan(Plain::loss, ENOUGH).unwrap();
    let budget = whole.device_bytes / 4;
    let refused = planner.plan(Plain::loss, budget);
    let error = refused.unwrap_err();
    let PlanError::NothingFits { least, .. } = &error else {
        panic!("{error}");
    };
    let missing = least - budget;
    let text = error.to_string();
    assert_says(&text, "can't be split");
    assert_says(&text, &format!("{missing} more"));
    for words in ["about", "Freeze", "LoRA", "4 bits"] {
        assert_says(&text, words);
    }
}

#[test]
fn a_plan_for_another_model_is_refused_by_the_difference() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let plan = plan::<Bag>(ENOUGH).unwrap();
    plan.save(&file).unwrap();
    let plan = Plan::<AdamWConfig>::load(&file).unwrap();
    let error = plan.fuse(init::<Mlp>).unwrap_err();
    assert_matches!(error, PlanError::AnotherModel { .. });
    let text = error.to_string();
    assert_says(&text, "320264 elements");

    // The same number of elements in another shape.
    let planner = |from, to| {
        let init = move || LinearConfig::new(from, to).with_bias(false).init(&device());
        Planner::new(init, AdamWConfig::new()).with_batch(2)
    };
    let loss = |from: usize| {
        move |model: &burn::nn::Linear, items: usize| {
            model
                .forward(Tensor::<2>::ones([items, from], &device()))
                .mean()
        }
    };
    let plan = planner(4, 6).plan(loss(4), ENOUGH).unwrap();
    let init = || LinearConfig::new(6, 4).with_bias(false).init(&device());
    let refused = plan.fuse(init).map(drop);
    assert!(matches!(refused, Err(PlanError::AnotherModel { .. })));
}

#[test]
fn an_edited_plan_that_cannot_be_is_refused() {
    let _alone = alone();
    let whole = plan::<Bag>(ENOUGH).unwrap();
    let mut plan = whole.clone();
    plan.accumulation = 0;
    let error = plan.fuse(init::<Bag>).unwrap_err().to_string();
    assert_says(&error, "`accumulation` of the plan is 0");
    plan.accumulation = usize::MAX;
    plan.batch = 2;
    assert!(plan.to_string().contains(&usize::MAX.to_string()));
    let mut plan = whole;
    plan.config.loss_scaling = Some(backburn::LossScalingConfig::new().with_initial_scale(-1.0));
    let error = plan.fuse(init::<Bag>).unwrap_err();
    assert_matches!(error, PlanError::Fused(_));
}

#[test]
fn planning_beside_a_recording_is_refused() {
    let _alone = alone();
    let recorder = MemoryRecorder::start().unwrap();
    let refused = plan::<Bag>(ENOUGH).map(drop);
    assert_matches!(refused, Err(PlanError::Memory(_)));
    drop(recorder);
    plan::<Bag>(ENOUGH).unwrap();
}

/// It is no more than a number that is too large.
#[test]
fn any_budget_is_planned_for() {
    let _alone = alone();
    for budget in [1, usize::MAX] {
        let planned = plan::<Bag>(budget);
        assert_eq!(planned.is_ok(), budget > 1, "{planned:?}");
    }
}

/// A panic of the closure is passed on, and planning can start again.
#[test]
fn a_loss_that_panics_leaves_nothing_under_way() {
    let _alone = alone();
    let panics = |model: &Bag, items: usize| match items {
        8 => panic!("eight items are too many"),
        _ => model.loss(items),
    };
    let planned = || planner::<Bag>().plan(panics, ENOUGH).map(drop);
    let panic = catch_unwind(AssertUnwindSafe(planned)).unwrap_err();
    let text = panic.downcast_ref::<&str>().unwrap();
    assert_eq!(*text, "eight items are too many");
    plan::<Bag>(ENOUGH).unwrap();
}

#[test]
fn a_damaged_file_is_no_plan() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    assert!(Plan::<AdamWConfig>::load(&file).is_err());
    let plan = plan::<Bag>(ENOUGH).unwrap();
    plan.save(&file).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    for damaged in [
        "",
        "{}",
        &text[..text.len() / 2],
        &text.replace("\"hash\"", "\"hush\""),
    ] {
        std::fs::write(&file, damaged).unwrap();
        assert!(Plan::<AdamWConfig>::load(&file).is_err(), "{damaged}");
    }
}

#[test]
fn a_model_without_autodiff_is_refused() {
    let _alone = alone();
    let init = || Mlp::init(&burn::tensor::Device::flex());
    let planner = Planner::new(init, AdamWConfig::new()).with_batch(2);
    let refused = planner.plan(Mlp::loss, ENOUGH);
    let is_refused = matches!(
        refused,
        Err(PlanError::Fused(FusedError::NotAutodiff { .. }))
    );
    assert!(is_refused, "{refused:?}");
}

#[test]
fn an_optimizer_of_burns_is_planned_without_formats() {
    let _alone = alone();
    let planner = Planner::new(init::<Mlp>, AdamConfig::new().init()).with_batch(Mlp::BATCH);
    let whole = planner.plan(Mlp::loss, ENOUGH).unwrap();
    assert!(
        whole.candidates.iter().all(|it| !it.name.contains("Bits")),
        "{whole}"
    );
    let budget = whole.device_bytes - whole.device_bytes / 8;
    let plan = planner.plan(Mlp::loss, budget).unwrap();
    let taken = crate::trained::<Mlp, _>(&plan);
    assert!(taken <= budget, "{taken} of {budget}\n{plan}");
}

/// Nobody has a hundred of them.
#[cfg(feature = "cuda")]
#[test]
fn a_device_that_is_not_there_is_refused_by_name() {
    let planner = planner::<Mlp>().with_device(&burn::tensor::Device::cuda(99));
    let refused = planner.plan(Mlp::loss, ENOUGH);
    let is_refused = matches!(
        refused,
        Err(PlanError::Fused(FusedError::DeviceUnavailable { .. }))
    );
    assert!(is_refused, "{refused:?}");
}

#[test]
fn an_optimizer_that_refuses_a_parameter_is_refused_by_its_path() {
    let _alone = alone();
    let init = || LinearConfig::new(64, 64).init(&device());
    let loss = |model: &Linear, items| {
        model
            .forward(Tensor::<2>::ones([items, 64], &device()))
            .mean()
    };
    let muon = Planner::new(init, MuonConfig::new()).plan(loss, ENOUGH);
    let in_bf16 = AdamWConfig::new().with_weight_format(WeightFormat::Split24);
    let of_f32 = Planner::new(init, in_bf16).plan(loss, ENOUGH);
    let refused = [(muon.map(drop), "bias"), (of_f32.map(drop), "weight")];
    for (refused, named) in refused {
        let Err(PlanError::Fused(FusedError::UnsupportedParameter { path, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(path, named);
    }
}
