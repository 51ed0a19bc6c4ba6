//! Closures that do what a user did not intend.

use std::sync::Arc;

use burn::optim::LearningRate;

use super::faults::in_time;
use super::*;

#[test]
fn a_tracked_tensor_that_ranks_share_holds_nobody_up() {
    let _alone = alone();
    let device = flex(1).remove(0);
    in_time(move || {
        let mut fused = FusedReplicas::new_ok(Network::init(&device), adamw(), flex(2))
            .with_config_ok(FusedConfig::new().with_max_bytes_in_flight(Some(0)));
        let shared = Tensor::<1>::ones([1], &device).require_grad();
        let batches = tokens(&device, &[2, 2]);
        // Burn joins the graphs of both, and locks them: it depends on when.
        let ended = fused.step(RATE, batches, move |model: &Network, tokens| {
            model.loss(tokens) * shared.clone()
        });
        if let Err(error) = ended {
            assert_says(&error, "Detach what the closure");
        }
        fused.step_ok(RATE, tokens(&device, &[2, 2]), Network::loss);
    });
}

#[test]
fn a_step_in_the_closure_of_another_is_refused() {
    let _alone = alone();
    let device = flex(1).remove(0);
    in_time(move || {
        let mut outer = FusedReplicas::new_ok(Network::init(&device), adamw(), flex(2));
        let inner = FusedReplicas::new_ok(Network::init(&device), adamw(), flex(2));
        let inner = Arc::new(Mutex::new((inner, device.clone())));
        let step = |inner: &Mutex<(FusedReplicas<Network>, Device)>| {
            let (fused, device) = &mut *inner.lock().unwrap();
            let batches = tokens(device, &[2, 2]);
            fused.step(RATE, batches, Network::loss).map(drop)
        };
        let other = inner.clone();
        let batches = tokens(&device, &[2, 2]);
        let losses = outer.step_ok(RATE, batches, move |model: &Network, batch| {
            let error = step(&other);
            assert!(matches!(error, Err(FusedError::Replicas { .. })));
            model.loss(batch)
        });
        assert_eq!(losses.len(), 2);
        // Once a step has shown that it draws nothing, it waits for no lock.
        step(&inner).unwrap();
        let batches = tokens(&device, &[2, 2]);
        let losses = outer.step_ok(RATE, batches, move |model: &Network, batch| {
            step(&inner).unwrap();
            model.loss(batch)
        });
        assert_eq!(losses.len(), 2);
    });
}

#[test]
fn the_model_of_another_rank_is_not_read() {
    let _alone = alone();
    let device = flex(1).remove(0);
    in_time(move || {
        let mut fused = FusedReplicas::new_ok(Network::init(&device), adamw(), flex(2));
        let first: Arc<Mutex<Option<Network>>> = Arc::default();
        let batches = tokens(&device, &[2, 2]);
        let error = fused.step(RATE, batches, move |model: &Network, tokens| {
            let model = first.lock().unwrap().get_or_insert(model.clone()).clone();
            model.loss(tokens)
        });
        let text = error.unwrap_err().to_string();
        assert_says(&text, "was read on the thread of rank");
    });
}

#[test]
fn a_hook_that_reads_a_model_ends_the_step() {
    let _alone = alone();
    let device = flex(1).remove(0);
    in_time(move || {
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
        let mut fused = FusedReplicas::new_ok(Network::init(&device), adamw(), flex(2))
            .with_hook(ParamGroup::all(), reads);
        for _ in 0..3 {
            models.lock().unwrap().clear();
            let aside = models.clone();
            let batches = tokens(&device, &[2, 2]);
            let error = fused.step(RATE, batches, move |model: &Network, tokens| {
                aside.lock().unwrap().push(model.clone());
                model.loss(tokens)
            });
            assert_matches!(error, Err(FusedError::RankPanicked { .. }));
        }
    });
}

#[test]
fn any_limit_may_be_asked_for() {
    let _alone = alone();
    let device = flex(1).remove(0);
    for limit in [0, usize::MAX] {
        let device = device.clone();
        in_time(move || {
            let mut fused = FusedReplicas::new_ok(Network::init(&device), adamw(), flex(3))
                .with_config_ok(FusedConfig::new().with_max_bytes_in_flight(Some(limit)));
            fused.step_ok(RATE, tokens(&device, &[2, 2, 4]), Network::loss);
        });
    }
}

#[derive(Module, Debug)]
struct NowAndThen {
    layer: Linear,
    dropout: Dropout,
}

#[test]
fn a_step_that_draws_after_one_that_did_not_is_repeatable() {
    let _alone = alone();
    let device = &flex(1)[0];
    let initial = NowAndThen {
        layer: LinearConfig::new(16, 16).init(device),
        dropout: DropoutConfig::new(0.5).init(),
    };
    let run = || {
        let init = || NowAndThen {
            layer: LinearConfig::new(16, 16).init(device),
            dropout: DropoutConfig::new(0.5).init(),
        };
        let model = copy(&initial, init);
        device.seed(5);
        let mut fused = FusedReplicas::new_ok(model, SgdConfig::new().init(), flex(2));
        let x = Tensor::<2>::ones([32, 16], device);
        let mut losses = Vec::new();
        for step in 0..20 {
            let batches = vec![(x.clone(), step % 2 == 0); 2];
            let of_step = fused.step_ok(RATE, batches, |model: &NowAndThen, (x, drops)| {
                let x = match drops {
                    true => model.dropout.forward(x),
                    false => x,
                };
                model.layer.forward(x).powi_scalar(2).mean()
            });
            losses.extend(of_step.into_iter().map(|loss| loss.into_scalar::<f32>()));
        }
        losses
    };
    assert_eq!(run(), run());
}

#[test]
fn two_groups_on_two_threads_draw_apart() {
    let _alone = alone();
    let device = flex(1).remove(0);
    in_time(move || {
        let train = |device: Device| {
            let model = NowAndThen {
                layer: LinearConfig::new(16, 16).init(&device),
                dropout: DropoutConfig::new(0.5).init(),
            };
            let mut fused = FusedReplicas::new_ok(model, SgdConfig::new().init(), flex(2));
            for _ in 0..20 {
                let x = Tensor::<2>::ones([32, 16], &device);
                let in_a_block = |model: &NowAndThen, x: Tensor<2>| {
                    let run = |model: &NowAndThen, x| model.layer.forward(model.dropout.forward(x));
                    gradient_checkpointing(model, x, run).powi_scalar(2).mean()
                };
                fused.step_ok(RATE, vec![x; 2], in_a_block);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let device = device.clone();
                scope.spawn(move || train(device));
            }
        });
    });
}

#[test]
fn a_stop_counts_for_all_ranks_though_its_owner_stands_by() {
    let _alone = alone();
    let device = &flex(1)[0];
    // Until another rank owns the parameter.
    for _ in 0..40 {
        let called: Arc<Mutex<Vec<String>>> = Arc::default();
        let notes = called.clone();
        let stops = hook(move |it| {
            notes.lock().unwrap().push(it.path.to_string());
            match it.path {
                "layers.3.weight" => Answer::Stop("on purpose"),
                _ => Answer::Use,
            }
        });
        let mut fused = FusedReplicas::new_ok(Network::init(device), adamw(), flex(3))
            .with_hook(ParamGroup::all(), stops);
        if fused.owner("layers.3.weight") == Some(0) {
            continue;
        }
        let before = fused.model();
        let error = fused.step(RATE, tokens(device, &[2]), Network::loss);
        assert_matches!(error, Err(FusedError::Rank { .. }));
        let called = called.lock().unwrap();
        assert_eq!(called.last().map(String::as_str), Some("layers.3.weight"));
        let pairs = weights(&before).into_iter().zip(weights(&fused.model()));
        for ((path, before), (_, after)) in pairs {
            if !called.contains(&path) {
                assert_eq!(before, after, "`{path}` was updated after the stop");
            }
        }
        return;
    }
    panic!("the first rank owned the parameter every time");
}

/// Burn's AdamW, which panics at a parameter of this shape.
#[derive(Clone)]
struct PanickingAt([usize; 2]);

impl Optimizer for PanickingAt {
    type State<const D: usize> = <burn::optim::Sgd as Optimizer>::State<D>;

    fn step<const D: usize>(
        &self,
        _learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        assert!(tensor.dims()[..] != self.0, "at this shape");
        (tensor - gradient, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, _device: &Device) -> Self::State<D> {
        state
    }
}

#[test]
fn a_panic_in_the_update_of_a_parameter_left_to_the_end_leaves_all_ranks_alike() {
    let _alone = alone();
    let device = &flex(1)[0];
    let model = Network::init(device)
        .apply_lora(Lora::new(2, 4.0))
        .unfreeze();
    let optimizer: ModuleOptimizer = PanickingAt([6, 6]).into();
    let mut fused = FusedReplicas::new_ok(model, optimizer, flex(2));
    let error = fused.step(RATE, tokens(device, &[2, 2]), Network::loss);
    assert_matches!(error, Err(FusedError::RankPanicked { .. }));
    let same = tokens(device, &[2]).remove(0);
    let losses = fused.accumulate_ok(vec![same; 2], Network::loss);
    assert_eq!(losses[0].to_data(), losses[1].to_data());
}

#[test]
fn full_precision_accumulation_changes_no_step_without_micro_batches() {
    let _alone = alone();
    let device = &flex(1)[0];
    let adapted = || {
        let model = Network::init(device)
            .apply_lora(Lora::new(2, 4.0))
            .unfreeze();
        backburn::cast(model, FloatDType::BF16).unwrap()
    };
    let initial = adapted();
    let steps: Vec<_> = (0..3).map(|_| tokens(device, &[2, 4, 2])).collect();
    let train = |in_full_precision: bool| {
        let model = copy(&initial, adapted);
        let mut fused = FusedReplicas::new_ok(model, SgdConfig::new().init(), flex(3));
        if in_full_precision {
            fused = fused.with_config_ok(FusedConfig::new().with_full_precision_accumulation(true));
        }
        for batches in &steps {
            fused.step_ok(RATE, batches.clone(), Network::loss);
        }
        fused.model()
    };
    assert_equal_weights(&train(false), &train(true));
}

/// A gradient of zeros, of a block that ignores an input, is an answer of its rank.
#[test]
fn zeros_of_one_rank_swallow_no_gradient_of_another() {
    let (_alone, device, initial) = begin();
    let model = copy(&initial, || Network::init(device));
    let mut fused = FusedReplicas::new_ok(model, SgdConfig::new().init(), flex(2));
    let x = Tensor::<2>::random([4, 6], Distribution::Default, device);
    let batches = vec![(x.clone(), false), (x, true)];
    fused.step_ok(RATE, batches, |model: &Network, (x, uses)| {
        let unused = model.layers[0].forward(x.clone());
        let ignoring = |layer: &Linear, (x, _): (Tensor<2>, Tensor<2>)| layer.forward(x);
        let out = gradient_checkpointing(&model.layers[1], (x.clone(), unused), ignoring);
        let run = |layer: &Linear, x: Tensor<2>| layer.forward(x);
        let aside = gradient_checkpointing(&model.layers[0], x, run);
        let y = match uses {
            true => out + aside.clone(),
            false => out,
        };
        // Kept: its block may still have a gradient to come.
        (y.powi_scalar(2).mean(), aside)
    });
    assert_changed(&initial, &fused.model(), |path| {
        path.starts_with("layers.0") || path.starts_with("layers.1")
    });
}

/// Its second run must see the value of the first.
#[test]
fn a_block_that_reads_a_weight_as_a_constant_keeps_it_from_being_stepped() {
    let _alone = alone();
    let device = &flex(1)[0];
    let loss = |model: &Network, tokens: Tensor<2, Int>, in_blocks: bool| {
        let x = model.embedding.forward(tokens);
        let run = |layer: &Linear, x: Tensor<3>| layer.forward(x).tanh();
        let frozen = model.layers[0].clone().no_grad();
        let x = block_if(in_blocks, &frozen, x, run);
        run(&model.layers[0], x).powi_scalar(2).mean()
    };
    let initial = Network::init(device);
    let batch = tokens(device, &[3]).remove(0);
    let one = |in_blocks: bool| {
        let model = copy(&initial, || Network::init(device));
        let mut fused = FusedOptimizer::new_ok(model, adamw());
        for _ in 0..3 {
            fused.step_ok(RATE, |model| loss(model, batch.clone(), in_blocks));
        }
        fused.model()
    };
    assert_equal_weights(&one(false), &one(true));
    for sharding in [Sharding::State, Sharding::Full] {
        let train = |in_blocks: bool| {
            let mut fused = replicas(&initial, &flex(2), FusedConfig::sharded(sharding));
            for _ in 0..3 {
                let batches = vec![batch.clone(); 2];
                fused.step_ok(RATE, batches, move |model: &Network, tokens| {
                    loss(model, tokens, in_blocks)
                });
            }
            fused.model()
        };
        assert_equal_weights(&train(false), &train(true));
    }
}
