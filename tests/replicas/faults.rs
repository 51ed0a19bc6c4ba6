//! A rank that fails ends the step on all ranks: with its name, without a thread that hangs, and nothing is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;

/// Ends the test if `work` has not ended in time.
pub fn in_time<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(work));
        let _ = sender.send(());
        result
    });
    let done = receiver.recv_timeout(Duration::from_secs(60));
    done.expect("a thread hangs");
    match thread.join().unwrap() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Where a rank fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Forward,
    FirstRunOfABlock,
    SecondRunOfABlock,
    Backward,
    NotTracked,
}

fn loss_with(
    fault: Option<Fault>,
    fails: &Arc<AtomicBool>,
    model: &Network,
    tokens: Tensor<2, Int>,
) -> Tensor<1> {
    let x = model.embedding.forward(tokens);
    let fires = |at| fault == Some(at);
    assert!(!fires(Fault::Forward), "in forward");
    let (first, second) = (
        fires(Fault::FirstRunOfABlock),
        fires(Fault::SecondRunOfABlock),
    );
    let flags = Constant((fails.clone(), Arc::new(AtomicBool::new(false))));
    type Flags = Constant<(Arc<AtomicBool>, Arc<AtomicBool>)>;
    let run = move |layer: &Linear, (x, Constant((fails, has_run))): (Tensor<3>, Flags)| {
        assert!(!first, "in a block");
        let again = has_run.swap(true, Ordering::Relaxed);
        assert!(
            !(second && again && fails.load(Ordering::Relaxed)),
            "in a second run"
        );
        layer.forward(x).tanh()
    };
    let x = gradient_checkpointing(&model.layers[0], (x, flags), run);
    let x = model.layers[1..]
        .iter()
        .fold(x, |x, layer| layer.forward(x).tanh());
    let x = model.sometimes.forward(x) * model.scale.val().reshape([1, 1, 6]);
    let loss = x.powi_scalar(2).mean();
    match fault {
        Some(Fault::NotTracked) => loss.detach(),
        Some(Fault::Backward) => {
            // A backward pass in the closure is a mistake that the first gradient tells.
            drop(loss.clone().backward());
            loss
        }
        _ => loss,
    }
}

#[test]
fn a_fault_of_a_rank_ends_the_step_on_all_and_nothing_is_lost() {
    let _alone = alone();
    let device = &flex(1)[0];
    for sharding in [Sharding::State, Sharding::Full] {
        for fault in [
            Fault::Forward,
            Fault::FirstRunOfABlock,
            Fault::SecondRunOfABlock,
            Fault::Backward,
            Fault::NotTracked,
        ] {
            for failing in 0..3 {
                let model = Network::init(device);
                let batches: Vec<_> = tokens(device, &[2; 3]).into_iter().enumerate().collect();
                in_time(move || {
                    let mut fused = FusedReplicas::new_ok(model, adamw(), flex(3))
                        .with_config_ok(FusedConfig::sharded(sharding));
                    let fails = Arc::new(AtomicBool::new(true));
                    let (flag, shared) = (fails.clone(), batches.clone());
                    let mut step = |fault: Option<Fault>| {
                        let flag = flag.clone();
                        fused.step(
                            RATE,
                            shared.clone(),
                            move |model: &Network, (rank, tokens)| {
                                let fault = fault.filter(|_| rank == failing);
                                loss_with(fault, &flag, model, tokens)
                            },
                        )
                    };
                    step(None).unwrap();
                    let error = step(Some(fault)).unwrap_err();
                    let (rank, text) = match &error {
                        FusedError::Rank { rank, .. } | FusedError::RankPanicked { rank, .. } => {
                            (*rank, error.to_string())
                        }
                        error => panic!("{fault:?}: {error}"),
                    };
                    assert_eq!(rank, failing, "{fault:?}: {text}");
                    let expected = match fault {
                        Fault::Forward => "in forward",
                        Fault::FirstRunOfABlock => "in a block",
                        Fault::SecondRunOfABlock => "in a second run",
                        Fault::Backward => "backward was called inside",
                        Fault::NotTracked => "not tracked",
                    };
                    assert!(text.contains(expected), "{fault:?}: {text}");
                    // All ranks have the same weights, and go on.
                    step(None).unwrap();
                    fused.model();
                    let same = vec![batches[0].clone(); 3];
                    let losses = fused
                        .accumulate_ok(same, |model: &Network, (_, tokens)| model.loss(tokens));
                    assert_eq!(losses[0].to_data(), losses[1].to_data());
                    assert_eq!(losses[0].to_data(), losses[2].to_data());
                });
            }
        }
    }
}

#[test]
fn a_micro_batch_that_fails_leaves_the_sum_of_those_before() {
    let (_alone, _, initial) = begin();
    let devices = flex(2);
    let batches = tokens(&devices[0], &[2, 4]);
    let train = |fails: bool| {
        let model = copy(&initial, || Network::init(&devices[0]));
        let mut fused = FusedReplicas::new_ok(model, adamw(), devices.clone());
        fused.accumulate_ok(batches.clone(), Network::loss);
        if fails {
            let failing = batches.clone().into_iter().zip([true, false]);
            let error = fused.accumulate(failing, |model: &Network, (tokens, fails)| {
                assert!(!fails, "on purpose");
                model.loss(tokens)
            });
            assert_matches!(error, Err(FusedError::RankPanicked { rank: 0, .. }));
        }
        fused.step_ok(RATE, batches.clone(), Network::loss);
        fused.model()
    };
    assert_equal_weights(&train(false), &train(true));
}

#[test]
fn a_hook_that_fails_ends_the_step_in_the_name_of_the_owner() {
    let _alone = alone();
    let device = &flex(1)[0];
    for panics in [false, true] {
        for sharding in [Sharding::State, Sharding::Full] {
            let model = Network::init(device);
            let batches = tokens(device, &[2, 4, 2]);
            in_time(move || {
                let fails = hook(move |it| match it.path {
                    "layers.1.weight" if panics => panic!("in a hook"),
                    "layers.1.weight" => Answer::Stop("on purpose"),
                    _ => Answer::Use,
                });
                let mut fused = FusedReplicas::new_ok(model, adamw(), flex(3))
                    .with_config_ok(FusedConfig::sharded(sharding))
                    .with_hook(ParamGroup::all(), fails);
                let owner = fused.owner("layers.1.weight").unwrap();
                for _ in 0..3 {
                    let error = fused
                        .step(RATE, batches.clone(), Network::loss)
                        .unwrap_err();
                    match error {
                        FusedError::Rank { rank, .. } if !panics => assert_eq!(rank, owner),
                        FusedError::RankPanicked { rank, message, .. } if panics => {
                            assert_eq!(rank, owner);
                            assert_says(&message, "in a hook");
                        }
                        error => panic!("{error}"),
                    }
                    fused.model();
                    fused.to_record();
                }
            });
        }
    }
}

/// A base that stays an ordinary leaf keeps its sum elsewhere.
#[test]
fn a_sum_of_all_ranks_that_is_not_finite_goes_with_the_step_that_a_hook_stops() {
    let _alone = alone();
    let device = &flex(1)[0];
    for adapted in [false, true] {
        let model = Network::init(device);
        let model = match adapted {
            true => model.apply_lora(Lora::new(2, 4.0)).unfreeze(),
            false => model,
        };
        let mut fused = FusedReplicas::new_ok(model, adamw(), flex(2))
            .with_hook(ParamGroup::all(), AnomalyCheck);
        let batches = tokens(device, &[2, 4]);
        let poisoned = batches.clone().into_iter().zip([1.0, f32::NAN]);
        fused.accumulate_ok(poisoned, |model: &Network, (tokens, factor)| {
            model.loss(tokens) * factor
        });
        let stopped = fused.step(RATE, batches.clone(), Network::loss);
        let named = |error: &FusedError| matches!(error, FusedError::GradientNotFinite { .. });
        assert_matches!(stopped, Err(FusedError::Rank { error, .. }) if named(error));
        assert_eq!(
            fused.step_accumulated(RATE),
            Err(FusedError::NothingAccumulated)
        );
        fused.step_ok(RATE, batches, Network::loss);
    }
}

#[test]
fn a_value_that_may_be_stepped_elsewhere_is_not_read() {
    let _alone = alone();
    let mut fused = FusedReplicas::new_ok(Network::init(&flex(1)[0]), adamw(), flex(2));
    let batches = tokens(&flex(1)[0], &[2, 2]);
    let error = fused.step_with_backward(RATE, batches, |model: &Network, tokens| {
        let gradients = model.loss(tokens).backward();
        let read = model.valid().scale.val();
        (read, GradientsParams::from_grads(gradients, model))
    });
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("`scale`") && text.contains("gone to the other ranks"),
        "{text}"
    );
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
fn a_panic_that_panics_when_dropped_ends_the_step_on_all_ranks() {
    let _alone = alone();
    let device = flex(1).remove(0);
    in_time(move || {
        let mut fused = FusedReplicas::new_ok(Network::init(&device), adamw(), flex(2));
        let batches = tokens(&device, &[2, 2]);
        for forever in [false, true] {
            for in_a_block in [false, true] {
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
                fused.step_ok(RATE, batches.clone(), Network::loss);
            }
        }
    });
}
