//! Closures that do what a user did not intend.

use std::sync::Arc;

use super::*;

fn two_replicas(device: &Device) -> FusedReplicas<Network> {
    replicas(&Network::init(device), &flex(2), FusedConfig::new())
}

#[test]
fn tracked_tensor_shared_by_ranks_does_not_block() {
    let _alone = alone();
    in_time(|| {
        let device = &flex(1)[0];
        let mut fused = two_replicas(device)
            .with_config(FusedConfig::new().with_max_bytes_in_flight(Some(0)))
            .unwrap();
        let shared = Tensor::<1>::ones([1], device).require_grad();
        // Burn joins the graphs of both and locks them. The result depends on timing.
        let ended = fused.step(
            RATE,
            tokens(device, &[2, 2]),
            move |model: &Network, tokens| model.loss(tokens) * shared.clone(),
        );
        if let Err(error) = ended {
            assert_says(&error, "Detach the tensors that the closure");
        }
        fused
            .step(RATE, tokens(device, &[2, 2]), Network::loss)
            .unwrap();
    });
}

#[test]
fn steps_in_closure_of_another_equal_stock() {
    let _alone = alone();
    in_time(|| {
        let device = &flex(1)[0];
        let initial = Network::init(device);
        let batches = tokens(device, &[2, 2]);
        let expected = |steps| {
            let start = copy(&initial, || Network::init(device));
            train_stock(start, &flex(2), &vec![batches.clone(); steps], Stock::Main)
        };
        let start = || replicas(&initial, &flex(2), FusedConfig::new());
        let mut outer = start();
        let inner = Arc::new(Mutex::new((start(), batches.clone())));
        let step = |inner: &Mutex<(FusedReplicas<Network>, Batches)>| {
            let (fused, batches) = &mut *inner.lock().unwrap();
            fused.step(RATE, batches.clone(), Network::loss).map(drop)
        };
        let mut step_outer = || {
            let inner = inner.clone();
            let ended = outer.step(RATE, batches.clone(), move |model, batch| {
                // The ranks of the inner step draw with the lock of the outer one.
                step(&inner).unwrap();
                model.loss(batch)
            });
            ended.unwrap();
        };
        step_outer();
        step(&inner).unwrap();
        step_outer();
        assert_equal_weights(&expected(2), &outer.model());
        // One step by each rank of two outer steps, and one in between.
        assert_equal_weights(&expected(5), &inner.lock().unwrap().0.model());
    });
}

#[test]
fn model_of_another_rank_read_is_an_error() {
    let _alone = alone();
    in_time(|| {
        let device = &flex(1)[0];
        let first: Arc<Mutex<Option<Network>>> = Arc::default();
        let step =
            two_replicas(device).step(RATE, tokens(device, &[2, 2]), move |model, tokens| {
                let model = first.lock().unwrap().get_or_insert(model.clone()).clone();
                model.loss(tokens)
            });
        assert_says(&step.unwrap_err(), "was read on the thread of rank");
    });
}

#[test]
fn value_that_another_rank_may_step_is_not_read() {
    let _alone = alone();
    let device = &flex(1)[0];
    let batches = tokens(device, &[2, 2]);
    let step = two_replicas(device).step_with_backward(RATE, batches, |model: &Network, tokens| {
        let gradients = model.loss(tokens).backward();
        let read = model.valid().scale.val();
        (read, GradientsParams::from_grads(gradients, model))
    });
    let error = step.unwrap_err();
    assert_says(&error, "`scale`");
    assert_says(&error, "sent to the other ranks");
}

#[test]
fn hook_that_reads_models_ends_step() {
    let _alone = alone();
    in_time(|| {
        let device = &flex(1)[0];
        let models: Arc<Mutex<Vec<Network>>> = Arc::default();
        let read = models.clone();
        let reads = hook(move |_| {
            let models = read.lock().unwrap().clone();
            for model in models {
                let value = model.scale.val();
                drop(value.clone() * value);
            }
            Answer::Use
        });
        let mut fused = two_replicas(device).with_hook(ParamGroup::all(), reads);
        for _ in 0..3 {
            models.lock().unwrap().clear();
            let aside = models.clone();
            let batches = tokens(device, &[2, 2]);
            let error = fused.step(RATE, batches, move |model: &Network, tokens| {
                aside.lock().unwrap().push(model.clone());
                model.loss(tokens)
            });
            assert_matches!(error, Err(FusedError::RankPanicked { .. }));
        }
    });
}

#[test]
fn stop_counts_for_all_ranks_without_batch_at_owner() {
    let (_alone, device, initial) = begin();
    let called: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = called.clone();
    let stops = hook(move |it| {
        notes.lock().unwrap().push(it.path.to_string());
        match it.path {
            "layers.3.weight" => Answer::Stop("on purpose"),
            _ => Answer::Use,
        }
    });
    let config = FusedConfig::new().with_ownership(Ownership::BySize);
    let mut fused = replicas(&initial, &flex(3), config).with_hook(ParamGroup::all(), stops);
    assert_ne!(fused.owner("layers.3.weight"), Some(0));
    let before = fused.model();
    let error = fused.step(RATE, tokens(device, &[2]), Network::loss);
    assert_matches!(error, Err(FusedError::Rank { .. }));
    let called = called.lock().unwrap();
    assert_eq!(called.last().map(String::as_str), Some("layers.3.weight"));
    for ((path, before), (_, after)) in weights(&before).iter().zip(&weights(&fused.model())) {
        let is_kept = called.contains(path) || before == after;
        assert!(is_kept, "`{path}` was updated after the stop");
    }
}

#[test]
fn panic_in_update_after_backward_leaves_ranks_alike() {
    let (_alone, device, initial) = begin();
    let model = initial.apply_lora(Lora::new(2, 4.0)).unfreeze();
    let panics = |shape: &[usize]| assert!(shape != [6, 6], "at the bases");
    let optimizer = intercepted(SgdConfig::new().build(), panics);
    let mut fused = FusedReplicas::new(model, optimizer.into(), flex(2)).unwrap();
    let error = fused.step(RATE, tokens(device, &[2, 2]), Network::loss);
    assert_matches!(error, Err(FusedError::RankPanicked { .. }));
    assert_ranks_agree(&mut fused);
}

/// A zero gradient of a block that ignores an input counts as the gradient of its rank.
#[test]
fn zeros_of_one_rank_keep_gradient_of_another() {
    let (_alone, device, initial) = begin();
    let model = copy(&initial, || Network::init(device));
    let mut fused = FusedReplicas::new(model, SgdConfig::new().init(), flex(2)).unwrap();
    let x = Tensor::<2>::random([4, 6], Distribution::Default, device);
    let batches = vec![(x.clone(), false), (x, true)];
    fused
        .step(RATE, batches, |model: &Network, (x, uses)| {
            let unused = model.layers[0].forward(x.clone());
            let ignoring = |layer: &Linear, (x, _): (Tensor<2>, Tensor<2>)| layer.forward(x);
            let out = gradient_checkpointing(&model.layers[1], (x.clone(), unused), ignoring);
            let run = |layer: &Linear, x: Tensor<2>| layer.forward(x);
            let aside = gradient_checkpointing(&model.layers[0], x, run);
            let y = match uses {
                true => out + aside.clone(),
                false => out,
            };
            // Unchanged, because its block may still deliver a gradient.
            (y.powi_scalar(2).mean(), aside)
        })
        .unwrap();
    assert_changed(&initial, &fused.model(), |path| {
        path.starts_with("layers.0") || path.starts_with("layers.1")
    });
}

/// Its second run must read the value of the first run.
#[test]
fn weight_read_as_constant_in_block_is_not_stepped_before() {
    let (_alone, device, initial) = begin();
    let batch = tokens(device, &[3]).remove(0);
    let loss = |model: &Network, tokens: Tensor<2, Int>, in_blocks: bool| {
        let x = model.embedding.forward(tokens);
        let frozen = model.layers[0].clone().no_grad();
        let x = block_if(in_blocks, &frozen, x, run);
        run(&model.layers[0], x).powi_scalar(2).mean()
    };
    let one = |in_blocks: bool| {
        let model = copy(&initial, || Network::init(device));
        let mut fused = FusedOptimizer::new(model, adamw()).unwrap();
        for _ in 0..3 {
            fused
                .step(RATE, |model| loss(model, batch.clone(), in_blocks))
                .unwrap();
        }
        fused.model()
    };
    let two = |in_blocks: bool, sharding: Sharding| {
        let mut fused = replicas(&initial, &flex(2), FusedConfig::sharded(sharding));
        for _ in 0..3 {
            let loss = move |model: &Network, tokens| loss(model, tokens, in_blocks);
            fused.step(RATE, vec![batch.clone(); 2], loss).unwrap();
        }
        fused.model()
    };
    assert_equal_weights(&one(false), &one(true));
    for sharding in SHARDINGS {
        assert_equal_weights(&two(false, sharding), &two(true, sharding));
    }
}
