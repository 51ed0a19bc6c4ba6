//! The choices of the planner, their order, and the use of a plan.

use std::sync::Mutex;

use backburn::optim::{AdamWConfig, MuonWithAdamWConfig};
use burn::config::Config;

use crate::common::*;
use crate::models::*;
use crate::{ENOUGH, alone, bytes, device, fixed, init, peak, plan, planner, trained};

#[test]
fn plan_with_enough_memory_only_fuses() {
    alone!();
    let plan = plan::<Mlp>(ENOUGH).unwrap();
    assert_eq!((plan.batch, plan.accumulation), (Mlp::BATCH, 1));
    assert_eq!(plan.weights, None);
    let keep = &plan.config.gradient_checkpointing.keep_activations;
    assert!(keep.iter().all(|keep| *keep));
    assert_eq!((plan.taken, &*plan.candidates[0].name), (0, "fused"));
    assert!(plan.candidates[0].is_proved);
    assert_says(&plan, "  fused");
}

#[test]
fn plan_takes_first_candidate_that_fits() {
    alone!();
    let fixed = fixed();
    let saved = plan::<Mlp>(ENOUGH).unwrap().device_bytes - fixed;
    let formats = |plan: &Plan<AdamWConfig>| {
        let optimizer = plan.optimizer.to_string();
        let of = ["Full", "Bits8", "Bits4"].map(|it| optimizer.contains(it));
        of.iter().position(|has| *has).unwrap()
    };
    let (mut formats_before, mut recomputed_before) = (0, 0);
    for budget in [19, 17, 14, 11, 9].map(|part| fixed + saved * part / 20) {
        let plan = plan::<Mlp>(budget).unwrap();
        let before = &plan.candidates[..plan.taken];
        assert!(before.iter().all(|it| it.device_bytes > budget), "{plan}");
        let taken = &plan.candidates[plan.taken];
        assert_eq!(taken.device_bytes, plan.device_bytes);
        assert!(taken.is_proved && plan.device_bytes <= budget, "{plan}");
        let keep = &plan.config.gradient_checkpointing.keep_activations;
        let recomputed = keep.iter().filter(|keep| !**keep).count();
        if (formats(&plan), plan.accumulation) == (0, 1) {
            assert!(recomputed > recomputed_before, "{plan}");
            recomputed_before = recomputed;
        }
        assert!(formats(&plan) >= formats_before, "{plan}");
        formats_before = formats(&plan);
    }
    assert!(formats_before > 0, "more than blocks was needed at last");
    assert!(recomputed_before > 0);
}

#[test]
fn plan_takes_largest_micro_batches_that_fit() {
    alone!();
    let planner = planner::<Plain>().with_order(&[Technique::MicroBatches]);
    let whole = planner.plan(Plain::loss, ENOUGH).unwrap();
    let plan = planner.plan(Plain::loss, whole.device_bytes - 400_000);
    let plan = plan.unwrap();
    assert_eq!(plan.accumulation, 2, "{plan}");
}

#[test]
fn planner_follows_order() {
    alone!();
    let plan = |order: &[Technique], budget| {
        let planner = planner::<Mlp>().with_order(order);
        planner.plan(Mlp::loss, budget).unwrap()
    };
    let whole = plan(&[], ENOUGH).device_bytes;
    // The estimate is less than this above the peak, and a block saves more.
    let budget = whole - 400_000;
    let name = |plan: &Plan<AdamWConfig>| plan.candidates[plan.taken].name.clone();
    let least_cost = plan(Technique::LEAST_COST, budget);
    assert_eq!(name(&least_cost), "1 of 6 blocks recomputed");
    let states_first = plan(&[Technique::States8, Technique::Blocks], budget);
    assert_eq!(name(&states_first), "states in Bits8");

    // With `SAME_PRECISION` all bits are kept.
    let planner = planner::<Mlp>().with_order(Technique::SAME_PRECISION);
    let refused = planner.plan(Mlp::loss, whole / 4);
    assert_matches!(refused, Err(PlanError::NothingFits { .. }));
    let only = plan(&[Technique::States4], ENOUGH);
    let names: Vec<_> = only.candidates.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["fused", "states in Bits4"]);
}

#[test]
fn planner_reports_what_it_tries() {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    alone!();
    let planner = planner::<Mlp>().with_progress(|tried| TOLD.lock().unwrap().push(tried.into()));
    planner.plan(Mlp::loss, ENOUGH).unwrap();
    let told = TOLD.lock().unwrap();
    assert!(told[0].starts_with("making the model"), "{told:?}");
    for tried in [
        "1 items, all blocks recomputed",
        "256 items, no block recomputed",
    ] {
        assert!(told.iter().any(|told| told == tried), "{told:?}");
    }
}

#[test]
fn weights_in_bf16_are_measured_if_nothing_else_fits() {
    alone!();
    let order = [Technique::Blocks, Technique::MicroBatches];
    let whole = planner::<Mlp>().with_order(&order);
    let whole = whole.plan(Mlp::loss, ENOUGH).unwrap();
    let least = bytes(&whole).into_iter().min().unwrap();
    let order = [order[0], order[1], Technique::Split24];
    let planner = planner::<Mlp>().with_order(&order);
    // More than the bytes that differ from run to run.
    let plan = planner.plan(Mlp::loss, least - 250_000).unwrap();
    assert_eq!(plan.weights, Some(burn::tensor::FloatDType::BF16), "{plan}");
    let fused = plan.fuse(init::<Mlp>).unwrap();
    assert!(fused.to_record().into_bytes().is_ok());
}

#[test]
fn plan_is_saved_read_and_changed() {
    alone!();
    // Without its last bit this is another number.
    let config = FusedConfig::lagged(1.0 / 11.0);
    let planner = planner::<Mlp>().with_config(config.clone());
    let whole = planner.plan(Mlp::loss, ENOUGH).unwrap();
    let budget = bytes(&whole)[1] + 30_000;
    let plan = planner.plan(Mlp::loss, budget).unwrap();
    assert_eq!(plan.config.clipping, config.clipping);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    plan.save(&file).unwrap();
    let mut read = Plan::<AdamWConfig>::load(&file).unwrap();
    assert_eq!(format!("{read:?}"), format!("{plan:?}"));
    assert_eq!(read.config, plan.config);
    assert_eq!(read.to_string(), plan.to_string());

    read.config.clipping = None;
    read.config.gradient_checkpointing.keep_activations.clear();
    let fused = read.fuse(init::<Mlp>).unwrap();
    assert_eq!(*fused.config(), read.config);
}

#[test]
fn planning_again_gives_same_plan() {
    alone!();
    let whole = plan::<Mlp>(ENOUGH).unwrap().device_bytes;
    // The budget is not near a limit: a block has about 800,000 bytes.
    let budget = plan::<Mlp>(whole * 3 / 4).unwrap().device_bytes + 200_000;
    let plan = || plan::<Mlp>(budget).unwrap();
    let (first, second) = (plan(), plan());
    assert_eq!(first.config, second.config);
    assert_eq!(
        (first.batch, first.accumulation),
        (second.batch, second.accumulation)
    );
    assert_eq!(first.model, second.model);
    let apart = first.device_bytes.abs_diff(second.device_bytes);
    assert!(apart < first.device_bytes / 50, "{apart} bytes apart");
}

/// The plan includes the iteration of Muon for the largest matrix.
#[test]
fn muon_is_planned_with_its_formats() {
    alone!();
    let recipe = MuonWithAdamWConfig::new(Vec::new());
    let planner = Planner::new(init::<Mlp>, recipe).with_batch(Mlp::BATCH);
    let planner = planner.with_order(&[Technique::States8]);
    let whole = planner.plan(Mlp::loss, ENOUGH).unwrap();
    let formats = whole.candidates.iter().find(|it| it.name.contains("Bits8"));
    let formats = formats.unwrap_or_else(|| panic!("{whole}")).device_bytes;
    for budget in [whole.device_bytes, formats].map(|bytes| bytes + 30_000) {
        let plan = planner.plan(Mlp::loss, budget).unwrap();
        let taken = trained::<Mlp, _>(&plan);
        assert!(taken <= budget, "{taken} of {budget}\n{plan}");
        let has_formats = plan.optimizer.to_string().contains("Bits8");
        assert_eq!(has_formats, budget < whole.device_bytes, "{plan}");
    }
}

/// The squares of Muon's iteration grow with the area of a matrix, not with its rows.
#[test]
fn plan_of_large_matrix_with_muon_is_not_exceeded() {
    alone!();
    let init = || -> Linear {
        let layer = LinearConfig::new(1024, 1024).with_bias(false);
        layer.init(&device())
    };
    let loss = |layer: &Linear, items: usize| {
        let x = Tensor::<2>::ones([items, 1024], &device());
        backburn_nn::linear(layer, x).mean()
    };
    let planner = Planner::new(init, MuonWithAdamWConfig::new(Vec::new())).with_order(&[]);
    let plan = planner.with_batch(2).plan(loss, ENOUGH).unwrap();
    let train = || {
        let mut fused = plan.fuse(init).unwrap();
        train_fused(&mut fused, 2, 1e-3, |layer, _| loss(layer, plan.batch));
    };
    let taken = peak(train).1;
    assert!(taken <= plan.device_bytes, "{taken} taken\n{plan}");
}

/// On `ndarray` the penalty is a tensor of the size of the parameter.
#[test]
fn estimate_of_sgd_with_decay_has_its_update() {
    alone!();
    let [_, ndarray] = cpus();
    let layer: Linear = LinearConfig::new(512, 512).with_bias(false).init(&ndarray);
    let decay = burn::optim::decay::WeightDecayConfig::new(0.1);
    let sgd = backburn::optim::SgdConfig::new().with_weight_decay(Some(decay));
    let estimate = MemoryEstimate::new(&layer, &sgd.init());
    assert!(estimate.fused >= 3 * estimate.parameters, "{estimate}");
}

#[test]
fn optimizer_of_burn_is_planned_without_formats() {
    alone!();
    let planner = Planner::new(init::<Mlp>, AdamConfig::new().init()).with_batch(Mlp::BATCH);
    let whole = planner.plan(Mlp::loss, ENOUGH).unwrap();
    let has_formats = whole.candidates.iter().any(|it| it.name.contains("Bits"));
    assert!(!has_formats, "{whole}");
    let budget = whole.device_bytes - whole.device_bytes / 8;
    let plan = planner.plan(Mlp::loss, budget).unwrap();
    let taken = trained::<Mlp, _>(&plan);
    assert!(taken <= budget, "{taken} of {budget}\n{plan}");

    // States that the optimizer has belong to another training.
    let estimate =
        |optimizer: &ModuleOptimizer| MemoryEstimate::new(&init::<Mlp>(), optimizer).fused;
    let mut fused = whole.fuse(init::<Mlp>).unwrap();
    fused.step(1e-3, |model| model.loss(whole.batch)).unwrap();
    let (_, optimizer) = fused.into_parts();
    let fresh = AdamConfig::new().init();
    assert_eq!(estimate(&optimizer), estimate(&fresh));
}
