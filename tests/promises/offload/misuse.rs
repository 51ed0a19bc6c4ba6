//! Unsupported combinations are refused by name, and a failure leaves the weights and states of the last update.

use std::sync::{Arc, Barrier};

use super::*;
use crate::common::*;

fn refused(config: OffloadConfig, device: &Device, model: Network) -> String {
    let fused = FusedOptimizer::new_ok(model, AdamConfig::new().init());
    let refused = fused.with_config_on(FusedConfig::offload(config), device);
    let error = refused.expect_err("it is refused");
    assert_matches!(error, FusedError::Offload { .. });
    error.to_string()
}

#[test]
fn the_host_is_no_device_to_offload_from() {
    let device = Device::flex();
    let model = Network::init(&device.clone().autodiff());
    let error = refused(OffloadConfig::new(Offload::Updates), &device, model);
    assert_says(&error, "the host itself");
}

/// A frozen weight that is a view of one element, and would be that long on the host.
#[test]
fn a_host_without_the_bytes_is_refused_by_option_and_bytes() {
    let device = Device::flex().autodiff();
    let linear = || LinearConfig::new(2, 2).with_bias(false).init(&device);
    let mut model = vec![linear(), linear().no_grad()];
    let long = Tensor::<2>::ones([1, 1], &device.clone().inner()).expand([1 << 24, 1 << 24]);
    model[1].weight = Param::initialized(model[1].weight.id, Tensor::from_inner(long));
    let fused = FusedOptimizer::new_ok(model, AdamConfig::new().init());
    let config = config(&device, Offload::Weights(OffloadedBlocks::All));
    let config = FusedConfig::offload(config);
    let error = fused.with_config_on(config, &device).unwrap_err();
    let FusedError::Offload { reason } = &error else {
        panic!("{error}")
    };
    let named = "`FusedConfig::offload` needs 1125899906842624 bytes";
    assert_says(&reason, named);
}

fn options_that_contradict_each_other_are_refused(device: &Device) {
    for part in [-0.5, 1.5, f64::NAN] {
        let blocks = Offload::Weights(OffloadedBlocks::Fraction(part));
        let error = refused(config(device, blocks), device, Network::init(device));
        assert_says(&error, "from 0 to 1");
    }

    let accumulates = FusedOptimizer::accumulating_in_state_ok(
        Network::init(device),
        optim::AdamWConfig::new().build(),
    );
    let error = accumulates.with_config_on(
        FusedConfig::offload(config(device, Offload::States)),
        device,
    );
    let error = error.err().unwrap().to_string();
    assert_says(&error, "accumulate in a buffer");
}

fn a_state_that_would_lose_digits_is_refused(device: &Device) {
    if !device.supports_dtype(burn::tensor::DType::F64) {
        return;
    }
    let weight = Tensor::<2>::ones([8, 8], (device, burn::tensor::DType::F64));
    let model = burn::module::Param::from_tensor(weight);
    let fused = FusedOptimizer::new_ok(model, AdamConfig::new().init());
    let error = fused.with_config_on(
        FusedConfig::offload(config(device, Offload::States)),
        device,
    );
    let error = error.err().unwrap().to_string();
    assert!(error.contains("F64") && error.contains("in f32"), "{error}");
}

/// A panic in the closure, in a block's first and second run, and in a hook.
fn a_panic_anywhere_leaves_what_was(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    for mode in modes(device) {
        let fuse = || {
            offloaded(
                copy(&initial, || Network::init(device)),
                AdamConfig::new().init(),
                device,
                mode,
            )
        };
        let mut untouched = fuse();
        train_fused(&mut untouched, 4, RATE, loss);

        let mut fused = fuse();
        train_fused(&mut fused, 2, RATE, loss);
        let panics = [
            panic_of(|| fused.step_ok(RATE, |_| -> Tensor<1> { panic!("in the closure") })),
            panic_of(|| {
                fused.step_ok(RATE, |model| {
                    let tokens = batches[2].clone();
                    let x: Tensor<2> = model.embedding.forward(tokens).flatten(0, 1);
                    let run = |block: &Block, x| -> Tensor<2> {
                        // The statistics are as they were.
                        block.expand.forward(x);
                        panic!("in a block")
                    };
                    gradient_checkpointing(&model.blocks[0], x, run).mean()
                })
            }),
        ];
        assert!(panics[0].contains("in the closure"), "{panics:?}");
        assert!(panics[1].contains("in a block"), "{panics:?}");
        train_fused(&mut fused, 2, RATE, |model, step| loss(model, step + 2));
        assert_equal_weights(&untouched.model(), &fused.model());

        let panics = hook(|it| {
            assert_ne!(it.path, "blocks.2.norm.gamma", "at this one");
            Answer::Use
        });
        let mut fused = fuse().with_hook(ParamGroup::all(), panics);
        let text = panic_of(|| fused.step_ok(RATE, |model| loss(model, 0)));
        assert_says(&text, "at this one");
        let expected = fuse();
        let after = [&expected, &fused].map(|fused| weights(&fused.model()));
        let unchanged = |path: &str| {
            let of = |weights: &[(String, burn::tensor::TensorData)]| {
                let found = weights.iter().find(|(found, _)| found == path);
                found.unwrap().1.as_bytes().to_vec()
            };
            of(&after[0]) == of(&after[1])
        };
        // Those whose gradient had not arrived, and the one itself.
        assert!(unchanged("blocks.2.norm.gamma"));
        assert!(unchanged("blocks.0.expand.weight"));
        assert!(unchanged("embedding.weight"));
    }
}

/// A norm that is not finite stops a clipped step before anything is used.
fn a_step_that_is_stopped_changes_nothing(device: &Device) {
    let batches = batches(device);
    for mode in modes(device) {
        let mut fused = FusedOptimizer::new_ok(Network::init(device), AdamConfig::new().init())
            .with_config_on_ok(
                FusedConfig::exact(1.0).with_offload(Some(config(device, mode))),
                device,
            );
        fused.step_repeatable_ok(RATE, |model| model.loss(batches[0].clone()));
        let before = fused.model().valid();
        let stopped =
            fused.step_repeatable(RATE, |model| model.loss(batches[1].clone()) * f32::INFINITY);
        assert!(matches!(stopped, Err(FusedError::NormNotFinite { .. })));
        let after = fused.model().valid();
        for ((path, before), (_, after)) in weights(&before).iter().zip(&weights(&after)) {
            assert_eq!(before.as_bytes(), after.as_bytes(), "`{path}` has changed");
        }
        fused.step_repeatable_ok(RATE, |model| model.loss(batches[2].clone()));
    }
}

/// A parameter that is too small to be offloaded is updated in its turn.
fn a_hook_that_stops_keeps_all_later_gradients_from_being_used(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let tokens = batches(device).remove(0);
    let stop = |fused: FusedOptimizer<Network>| {
        let stops = hook(|it| match it.path {
            "blocks.2.contract.weight" => Answer::Stop("here"),
            _ => Answer::Use,
        });
        let mut fused = fused.with_hook(ParamGroup::all(), stops);
        let stopped = fused.step(RATE, |model| model.loss(tokens.clone()));
        assert!(matches!(stopped, Err(FusedError::StoppedByHook { .. })));
        fused.model()
    };
    let expected = stop(FusedOptimizer::new_ok(copy(), AdamConfig::new().init()));
    for mode in modes(device) {
        let fused = FusedOptimizer::new_ok(copy(), AdamConfig::new().init());
        let found =
            stop(fused.with_config_on_ok(FusedConfig::offload(config(device, mode)), device));
        assert_equal_weights(&expected.valid(), &found.valid());
    }
}

/// In the closure, after the backward pass, a read waits for the update.
fn what_is_read_after_the_backward_pass_is_the_new_weight(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let tokens = batches(device).remove(0);
    for mode in modes(device) {
        let mut fused = offloaded(copy(), AdamConfig::new().init(), device, mode);
        let read = fused.step_with_backward_ok(RATE, |model| {
            let gradients = model.loss(tokens.clone()).backward();
            let blocks = model.valid().blocks;
            let read = blocks[0].expand.weight.val().into_data();
            (
                read.iter::<f32>().collect::<Vec<_>>(),
                GradientsParams::from_grads(gradients, model),
            )
        });
        let after = fused.model().blocks[0].expand.weight.val().into_data();
        assert_eq!(read, after.iter::<f32>().collect::<Vec<_>>(), "{mode:?}");
        assert_changed(&initial, &fused.model(), |_| true);
    }
}

/// Two trainings that wait for each other in their hooks: each has threads of its own.
fn two_trainings_run_beside_each_other(device: &Device) {
    if !is_exact(device) {
        return; // Each thread would have a stream of its own.
    }
    let tokens = batches(device).remove(0);
    let barrier = Arc::new(Barrier::new(2));
    let meets = || {
        let barrier = barrier.clone();
        hook(move |_| {
            barrier.wait();
            Answer::Use
        })
    };
    let fused = || {
        FusedOptimizer::new_ok(Network::init(device), AdamConfig::new().init())
            .with_hook(ParamGroup::all(), meets())
            .with_config_on_ok(
                FusedConfig::offload(config(device, Offload::Updates)),
                device,
            )
    };
    let both = [fused(), fused()];
    std::thread::scope(|scope| {
        for mut fused in both {
            let tokens = tokens.clone();
            scope.spawn(move || fused.step_ok(RATE, |model| model.loss(tokens)));
        }
    });
}

fn a_model_for_inference_can_be_moved(device: &Device) {
    let mode = Offload::Weights(OffloadedBlocks::All);
    let fused = offloaded(
        Network::init(device),
        AdamConfig::new().init(),
        device,
        mode,
    );
    let host = host(device).inner();
    let tokens = batches(device).remove(0);
    let [here, there] = [device.clone().inner(), host].map(|device| {
        let logits = fused
            .valid()
            .to_device(&device)
            .logits(tokens.clone().to_device(&device));
        logits.into_data().iter::<f64>().collect::<Vec<_>>()
    });
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4;
    assert!(here.iter().zip(&there).all(near), "{here:?} {there:?}");
}

fn a_model_from_inference_is_not_trained(device: &Device) {
    let mode = Offload::Weights(OffloadedBlocks::All);
    let fused = offloaded(
        Network::init(device),
        AdamConfig::new().init(),
        device,
        mode,
    );
    let again = FusedOptimizer::new(fused.valid().train(), AdamConfig::new().init());
    assert!(
        again.is_err(),
        "it would come over from the host without a gradient"
    );
}

on_every_backend!(
    options_that_contradict_each_other_are_refused,
    a_state_that_would_lose_digits_is_refused,
    a_panic_anywhere_leaves_what_was,
    a_step_that_is_stopped_changes_nothing,
    a_hook_that_stops_keeps_all_later_gradients_from_being_used,
    what_is_read_after_the_backward_pass_is_the_new_weight,
    two_trainings_run_beside_each_other,
    a_model_for_inference_can_be_moved,
    a_model_from_inference_is_not_trained,
);
