//! A failed rank ends the step on all ranks with an error that names it. No thread hangs, and nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::rows::faults::Fault;
use super::*;

#[test]
fn fault_of_one_rank_ends_step_on_all_and_loses_nothing() {
    let _alone = alone();
    let faults = [Fault::Closure, Fault::Backward, Fault::SecondRun].map(Some);
    let faults = faults.into_iter().chain([None]);
    for (sharding, (fault, failing)) in product(SHARDINGS, product(faults, 0..3)) {
        in_time(move || {
            let device = &flex(1)[0];
            let batches: Vec<_> = tokens(device, &[2; 3]).into_iter().enumerate().collect();
            let config = FusedConfig::sharded(sharding);
            let mut fused = replicas(&Network::init(device), &flex(3), config);
            let mut step = |untracked: Option<usize>| {
                let loss = move |model: &Network, (rank, tokens)| match untracked == Some(rank) {
                    true => rows::loss(model, tokens).detach(),
                    false => rows::loss(model, tokens),
                };
                fused.step(RATE, batches.clone(), loss)
            };
            step(None).unwrap();
            if let Some(fault) = fault {
                fault.arm_on(failing);
            }
            let error = step(fault.is_none().then_some(failing)).unwrap_err();
            let (FusedError::Rank { rank, .. } | FusedError::RankPanicked { rank, .. }) = error
            else {
                panic!("{fault:?}: {error}");
            };
            assert_eq!(rank, failing, "{fault:?}: {error}");
            assert_says(&error, fault.map_or("not tracked", Fault::says));
            step(None).unwrap();
            fused.model();
            assert_ranks_agree(&mut fused);
        });
    }
}

#[test]
fn failed_micro_batch_leaves_sum_of_those_before() {
    let (_alone, device, initial) = begin();
    let batches = tokens(device, &[2, 4]);
    let train = |fails: bool| {
        let mut fused = replicas(&initial, &flex(2), FusedConfig::new());
        fused.accumulate(batches.clone(), Network::loss).unwrap();
        if fails {
            let failing = batches.clone().into_iter().zip([true, false]);
            let error = fused.accumulate(failing, |model: &Network, (tokens, fails)| {
                assert!(!fails, "on purpose");
                model.loss(tokens)
            });
            assert_matches!(error, Err(FusedError::RankPanicked { rank: 0, .. }));
            let reaches_nothing =
                |_: &Network, tokens: Tensor<2, Int>| tokens.float().require_grad().mean();
            let error = fused.accumulate(batches.clone(), reaches_nothing);
            assert_matches!(error, Err(FusedError::LossWithoutParameters { .. }));
        }
        fused.step(RATE, batches.clone(), Network::loss).unwrap();
        fused.model()
    };
    assert_equal_weights(&train(false), &train(true));
}

#[test]
fn hook_that_fails_ends_step_with_rank_of_owner() {
    let _alone = alone();
    for (panics, sharding) in product([false, true], SHARDINGS) {
        in_time(move || {
            let device = &flex(1)[0];
            let fails = hook(move |it| match it.path {
                "layers.1.weight" if panics => panic!("on purpose"),
                "layers.1.weight" => Answer::Stop("on purpose"),
                _ => Answer::Use,
            });
            let config = FusedConfig::sharded(sharding);
            let mut fused = replicas(&Network::init(device), &flex(3), config)
                .with_hook(ParamGroup::all(), fails);
            let owner = fused.owner("layers.1.weight").unwrap();
            for _ in 0..3 {
                let step = fused.step(RATE, tokens(device, &[2, 4, 2]), Network::loss);
                let error = step.unwrap_err();
                match error {
                    FusedError::Rank { rank, .. } if !panics => assert_eq!(rank, owner),
                    FusedError::RankPanicked { rank, .. } if panics => assert_eq!(rank, owner),
                    _ => panic!("{error}"),
                }
                assert_says(&error, "on purpose");
                fused.model();
                fused.to_record();
            }
        });
    }
}

/// A base that is an ordinary leaf stores its sum separately.
#[test]
fn sum_not_finite_is_dropped_with_step_that_hook_stops() {
    let (_alone, device, initial) = begin();
    let adapted = initial.clone().apply_lora(Lora::new(2, 4.0)).unfreeze();
    for model in [initial, adapted] {
        let mut fused = FusedReplicas::new(model, adamw(), flex(2))
            .unwrap()
            .with_hook(ParamGroup::all(), AnomalyCheck);
        let batches = tokens(device, &[2, 4]);
        let poisoned = batches.clone().into_iter().zip([1.0, f32::NAN]);
        fused
            .accumulate(poisoned, |model: &Network, (tokens, factor)| {
                model.loss(tokens) * factor
            })
            .unwrap();
        let stopped = fused.step(RATE, batches.clone(), Network::loss);
        let named = |error: &FusedError| matches!(error, FusedError::GradientNotFinite { .. });
        assert_matches!(stopped, Err(FusedError::Rank { error, .. }) if named(error));
        let error = fused.step_accumulated(RATE);
        assert_eq!(error, Err(FusedError::NothingAccumulated));
        fused.step(RATE, batches, Network::loss).unwrap();
    }
}

/// A panic payload that panics when it is dropped, and so does the payload of that panic.
struct Bomb {
    forever: bool,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        match self.forever {
            true => std::panic::panic_any(Bomb { forever: true }),
            false => panic!("when it is dropped"),
        }
    }
}

#[test]
fn panic_that_panics_when_dropped_ends_step_on_all_ranks() {
    let _alone = alone();
    in_time(|| {
        let device = &flex(1)[0];
        let mut fused = replicas(&Network::init(device), &flex(2), FusedConfig::new());
        let batches = tokens(device, &[2, 2]);
        for (forever, in_a_block) in product([false, true], [false, true]) {
            let fails = move |model: &Network, tokens: Tensor<2, Int>| -> Tensor<1> {
                let again = Constant(Arc::new(AtomicBool::new(!in_a_block)));
                type Again = Constant<Arc<AtomicBool>>;
                let run = move |layer: &Linear, (x, Constant(again)): (Tensor<3>, Again)| {
                    if again.swap(true, Ordering::Relaxed) {
                        std::panic::panic_any(Bomb { forever });
                    }
                    layer.forward(x)
                };
                let x = model.embedding.forward(tokens);
                gradient_checkpointing(&model.layers[0], (x, again), run).mean()
            };
            let error = fused.step(RATE, batches.clone(), fails);
            assert_matches!(error, Err(FusedError::RankPanicked { .. }));
            fused.step(RATE, batches.clone(), Network::loss).unwrap();
        }
    });
}

#[test]
fn step_that_reaches_nothing_applies_sums_in_any_schedule() {
    let (_alone, device, initial) = begin();
    let batches = tokens(device, &[2, 4]);
    let scaling = LossScalingConfig::new();
    for config in [
        FusedConfig::new(),
        FusedConfig::exact(1e-3),
        FusedConfig::clipping(GlobalNormClippingConfig::ExactInBuffer(1e-3)),
        FusedConfig::scaling(scaling),
    ] {
        let mut fused = replicas(&initial, &flex(2), config.clone());
        fused.accumulate(batches.clone(), Network::loss).unwrap();
        let before = fused.model();
        let reaches_nothing =
            |_: &Network, tokens: Tensor<2, Int>| tokens.float().require_grad().mean();
        fused
            .step_repeatable(RATE, batches.clone(), reaches_nothing)
            .unwrap();
        assert_changed(&before, &fused.model(), |_| true);
    }
}
