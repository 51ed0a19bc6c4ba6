//! What is chosen, in which order, and what becomes of a plan.

use std::sync::Mutex;

use backburn::optim::{AdamWConfig, LionConfig, MuonWithAdamWConfig};
use backburn::{
    Fidelity, FusedConfig, FusedError, FusedOptimizer, FusedReplicas, GlobalNormClippingConfig,
    Ownership, Plan, PlanError, Planner, Technique,
};
use burn::config::Config;
use burn::tensor::Device;

use crate::compare::assert_equal_weights;
use crate::models::*;
use crate::{ENOUGH, alone, init, measured, planner, trained};

#[test]
fn with_enough_memory_nothing_is_done_but_fusing() {
    let _alone = alone();
    let plan = measured::<Mlp>(ENOUGH).unwrap().choose(ENOUGH).unwrap();
    assert_eq!((plan.batch, plan.accumulation), (Mlp::BATCH, 1));
    assert_eq!(plan.weights, None);
    assert!(
        plan.config
            .gradient_checkpointing
            .keep_activations
            .iter()
            .all(|keep| *keep)
    );
    assert_eq!(plan.ladder.taken, Some(0));
    assert_eq!(plan.ladder.rungs[0].name, "fused");
    assert!(plan.to_string().contains("> fused"), "{plan}");
    assert!(plan.to_string().contains("stock Burn"), "{plan}");
}

/// Tried at every byte where something changes: no rung before the one that was taken fits.
#[test]
fn the_first_rung_that_fits_is_taken() {
    let _alone = alone();
    let measured = measured::<Mlp>(ENOUGH).unwrap();
    let rungs = measured.ladder(ENOUGH).rungs;
    let mut taken_before = 0;
    for budget in (1..=20).rev().map(|part| rungs[0].device_bytes * part / 20) {
        let ladder = measured.ladder(budget);
        let Ok(plan) = measured.choose(budget) else {
            assert_eq!(ladder.taken, None);
            continue;
        };
        let taken = ladder.taken.unwrap();
        assert!(
            ladder.rungs[..taken]
                .iter()
                .all(|rung| rung.device_bytes > budget),
            "{ladder}"
        );
        assert_eq!(ladder.rungs[taken].device_bytes, plan.device_bytes);
        assert!(plan.device_bytes <= budget);
        assert!(taken >= taken_before, "{ladder}");
        taken_before = taken;
        assert_eq!(plan.ladder, ladder);
    }
    assert!(taken_before >= 2, "more than blocks was needed at last");
}

#[test]
fn blocks_run_twice_no_more_than_it_takes() {
    let _alone = alone();
    let measured = measured::<Mlp>(ENOUGH).unwrap();
    let ladder = measured.ladder(ENOUGH);
    let (fused, all) = (ladder.rungs[0].device_bytes, ladder.rungs[1].device_bytes);
    let mut counts = Vec::new();
    for part in 0..=4 {
        let budget = fused - (fused - all) * part / 4;
        let plan = measured.choose(budget).unwrap();
        assert_eq!(plan.accumulation, 1, "{plan}");
        let keep = plan.config.gradient_checkpointing.keep_activations;
        counts.push(keep.iter().filter(|keep| !**keep).count());
    }
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!(counts[0], 0);
    assert!(counts[1] > 0 && counts[1] < counts[4], "{counts:?}");
}

#[test]
fn the_order_is_the_users() {
    let _alone = alone();
    let measured = |order: &[Technique]| {
        planner::<Mlp>()
            .with_order(order)
            .measure(Mlp::loss, ENOUGH)
            .unwrap()
    };
    let least_cost = measured(Technique::LEAST_COST);
    let budget = least_cost.ladder(ENOUGH).rungs[0].device_bytes - 100_000;
    let exact = least_cost.choose(budget).unwrap();
    let taken = |plan: &Plan<AdamWConfig>| plan.ladder.rungs[plan.ladder.taken.unwrap()].clone();
    assert_eq!(taken(&exact).fidelity, Fidelity::Exact);

    let fast = measured(Technique::FAST_FIRST);
    let budget = fast.ladder(ENOUGH).rungs[0].device_bytes - 100_000;
    let fast = fast.choose(budget).unwrap();
    assert_eq!(taken(&fast).name, "states in Bits8");
    assert_eq!(taken(&fast).fidelity, Fidelity::Precision);

    // Whatever it takes, no bit is given up.
    let same = measured(Technique::SAME_PRECISION);
    let ladder = same.ladder(1);
    assert!(
        ladder
            .rungs
            .iter()
            .all(|rung| rung.fidelity != Fidelity::Precision),
        "{ladder}"
    );
    assert_eq!(ladder.taken, None);
    let only = measured(&[Technique::States4]);
    let names: Vec<_> = only
        .ladder(1)
        .rungs
        .iter()
        .map(|rung| rung.name.clone())
        .collect();
    assert_eq!(names, ["fused", "states in Bits4"]);
}

#[test]
fn gradients_that_go_into_the_states_need_no_buffer() {
    let _alone = alone();
    let order = [Technique::MicroBatches, Technique::SumsInState];
    let measured = planner::<Bag>().with_order(&order);
    let measured = measured.measure(Bag::loss, ENOUGH).unwrap();
    let rungs = measured.ladder(1).rungs;
    let names: Vec<_> = rungs.iter().map(|rung| rung.name.as_str()).collect();
    // A buffer would take more than smaller passes save.
    assert_eq!(names, ["fused", "32 micro-batches summed in states"]);
    assert_eq!(rungs[1].fidelity, Fidelity::Approximation);
    assert!(rungs[1].device_bytes < rungs[0].device_bytes, "{rungs:?}");

    // As the door for it trains by hand.
    let plan = Plan {
        accumulation: 2,
        batch: Bag::BATCH / 2,
        sums_in_state: true,
        ..measured.choose(ENOUGH).unwrap()
    };
    let model = init::<Bag>();
    let optimizer = AdamWConfig::new().build();
    let mut by_hand = FusedOptimizer::accumulating_in_state(model.clone(), optimizer).unwrap();
    let mut fused = plan.fuse(|| model).unwrap();
    for training in [&mut by_hand, &mut fused] {
        for _ in 0..2 {
            training
                .accumulate(|model| model.loss(plan.batch) / 2.0)
                .unwrap();
            training
                .step(1e-3, |model| model.loss(plan.batch) / 2.0)
                .unwrap();
        }
    }
    assert_equal_weights(&by_hand.model(), &fused.model());

    // An optimizer whose state can't take them is planned without.
    let lion = Planner::new(init::<Bag>, LionConfig::new()).with_batch(Bag::BATCH);
    let lion = lion.with_order(&order).measure(Bag::loss, ENOUGH).unwrap();
    assert_eq!(lion.ladder(1).rungs.len(), 1, "{lion}");
    let mut plan = lion.choose(ENOUGH).unwrap();
    plan.sums_in_state = true;
    let refused = plan.fuse(init::<Bag>).map(drop);
    assert!(
        matches!(
            refused,
            Err(PlanError::Fused(FusedError::NotInState { .. }))
        ),
        "{refused:?}"
    );
}

/// Those of the processor share its memory: there more of them save nothing, and are no rung.
#[test]
fn a_plan_for_several_devices_is_followed_on_as_many() {
    let _alone = alone();
    let devices = vec![crate::device(); 2];
    let planner = planner::<Bag>().with_devices(&devices);
    let measured = planner.measure(Bag::loss, ENOUGH).unwrap();
    let rungs = measured.ladder(1).rungs;
    assert!(
        rungs.iter().all(|rung| !rung.name.contains("ranks")),
        "{rungs:?}"
    );
    let alone = measured.choose(ENOUGH).unwrap();
    assert_eq!(alone.ranks, 1);
    let refused = |plan: &Plan<AdamWConfig>, devices: &[Device]| {
        let refused = plan.replicas(init::<Bag>, devices).map(drop);
        assert!(
            matches!(refused, Err(PlanError::Unusable { .. })),
            "{refused:?}"
        );
    };
    refused(&alone, &devices);

    let config = alone.config.clone().with_ownership(Ownership::BySize);
    let plan = Plan {
        ranks: 2,
        batch: Bag::BATCH / 2,
        config: config.clone(),
        ..alone
    };
    refused(&plan, &devices[..1]);
    let refused = plan.fuse(init::<Bag>).map(drop);
    assert!(
        matches!(refused, Err(PlanError::Unusable { .. })),
        "{refused:?}"
    );
    let model = init::<Bag>();
    let optimizer = AdamWConfig::new().init();
    let mut by_hand =
        FusedReplicas::new_with_config(model.clone(), optimizer, devices.clone(), config).unwrap();
    let mut fused = plan.replicas(|| model, &devices).unwrap();
    for training in [&mut by_hand, &mut fused] {
        training
            .step(1e-3, [16, 16], |model: &Bag, items| model.loss(items) / 2.0)
            .unwrap();
    }
    assert_equal_weights(&by_hand.model(), &fused.model());
}

#[test]
fn a_planner_says_what_it_tries() {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let _alone = alone();
    let planner = planner::<Mlp>().with_progress(|tried| TOLD.lock().unwrap().push(tried.into()));
    planner.measure(Mlp::loss, ENOUGH).unwrap();
    let told = TOLD.lock().unwrap();
    assert!(told[0].starts_with("making the model"), "{told:?}");
    for tried in [
        "1 items, all blocks run twice",
        "256 items, no block runs twice",
    ] {
        assert!(told.iter().any(|told| told == tried), "{told:?}");
    }
}

#[test]
fn weights_in_bf16_are_measured_where_nothing_else_fits() {
    let _alone = alone();
    let whole = planner::<Mlp>().with_order(Technique::SAME_PRECISION);
    let whole = whole.measure(Mlp::loss, ENOUGH).unwrap();
    let least = whole
        .ladder(1)
        .rungs
        .iter()
        .map(|rung| rung.device_bytes)
        .min()
        .unwrap();
    let order = [
        Technique::Blocks,
        Technique::MicroBatches,
        Technique::Split24,
    ];
    let planner = planner::<Mlp>().with_order(&order);
    // Less than what is not known of a way that steps have not shown.
    let budget = least - 250_000;
    let plan = planner
        .measure(Mlp::loss, budget)
        .unwrap()
        .choose(budget)
        .unwrap();
    assert_eq!(plan.weights, Some(burn::tensor::FloatDType::BF16), "{plan}");
    let fused = plan.fuse(init::<Mlp>).unwrap();
    assert!(fused.to_record().into_bytes().is_ok());
}

#[test]
fn a_plan_is_saved_read_and_changed() {
    let _alone = alone();
    let config = FusedConfig::new().with_clipping(Some(GlobalNormClippingConfig::Lagged(1.0)));
    let planner = planner::<Mlp>().with_config(config.clone());
    let measured = planner.measure(Mlp::loss, ENOUGH).unwrap();
    let budget = measured.ladder(ENOUGH).rungs[1].device_bytes + 10_000;
    let plan = measured.choose(budget).unwrap();
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
fn the_same_is_planned_again() {
    let _alone = alone();
    let whole = measured::<Mlp>(ENOUGH).unwrap();
    let most = whole.ladder(ENOUGH).rungs[0].device_bytes;
    // Not where a few bytes decide: a block has some 800,000.
    let budget = whole.choose(most * 3 / 4).unwrap().device_bytes + 200_000;
    let plan = || measured::<Mlp>(budget).unwrap().choose(budget).unwrap();
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

#[test]
fn a_peak_that_was_seen_is_reckoned_with() {
    let _alone = alone();
    let mut measured = measured::<Mlp>(ENOUGH).unwrap();
    let fused = measured.ladder(ENOUGH).rungs[0].device_bytes;
    let plan = measured.choose(fused).unwrap();
    assert_eq!(plan.ladder.taken, Some(0));
    // After each step.
    for _ in 0..3 {
        measured.have_seen(&plan, plan.device_bytes * 11 / 10);
    }
    let again = measured.choose(fused).unwrap();
    assert_ne!(again.ladder.taken, Some(0), "{again}");
    // What the same way is said to take is what it took.
    let seen = plan.device_bytes * 11 / 10;
    let again = measured.choose(ENOUGH).unwrap().device_bytes;
    assert!(again.abs_diff(seen) < seen / 100, "{again} for {seen}");
    // Nobody needs less than what was measured.
    measured.have_seen(&plan, 0);
    assert_eq!(measured.choose(fused).unwrap().device_bytes, fused);
}

/// What the iteration takes for the largest matrix is in the plan.
#[test]
fn muon_is_planned_with_its_formats() {
    let _alone = alone();
    let recipe = MuonWithAdamWConfig::new(Vec::new());
    let planner = Planner::new(init::<Mlp>, recipe).with_batch(Mlp::BATCH);
    let planner = planner.with_order(&[Technique::States8]);
    let measured = planner.measure(Mlp::loss, ENOUGH).unwrap();
    let rungs = measured.ladder(ENOUGH).rungs;
    let formats = rungs.iter().find(|rung| rung.name.contains("Bits8"));
    let formats = formats.unwrap_or_else(|| panic!("{}", measured.ladder(ENOUGH)));
    for budget in [rungs[0].device_bytes, formats.device_bytes] {
        let plan = measured.choose(budget).unwrap();
        let taken = trained::<Mlp, _>(&plan);
        assert!(taken <= budget, "{taken} of {budget}\n{plan}");
        let has_formats = plan.optimizer.to_string().contains("Bits8");
        assert_eq!(has_formats, budget == formats.device_bytes, "{plan}");
    }
}
