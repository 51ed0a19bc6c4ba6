//! Unsupported combinations are refused by name, and a failure leaves the weights and states of the last update.

use std::sync::{Arc, Barrier};

use super::blocks::with_inputs;
use super::*;

#[track_caller]
fn refused<M: Module>(fused: FusedOptimizer<M>, config: FusedConfig, device: &Device) -> String {
    let error = fused.with_config_on(config, device);
    error.expect_err("it is refused").to_string()
}

#[test]
fn offload_from_host_is_refused() {
    let device = Device::flex();
    let model = Network::init(&device.clone().autodiff());
    let fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let config = FusedConfig::offload(OffloadConfig::new(Offload::Updates));
    assert_says(&refused(fused, config, &device), "the host itself");
}

#[test]
fn offload_of_model_on_two_devices_names_the_way_out() {
    let [flex, ndarray] = &cpus();
    let linear = |device| LinearConfig::new(4, 4).init(device);
    let fused = FusedOptimizer::new(
        vec![linear(ndarray), linear(flex)],
        AdamConfig::new().init(),
    );
    let config = FusedConfig::offload(offload_from(ndarray, Offload::Updates));
    let error = fused.unwrap().with_config(config.clone()).unwrap_err();
    assert_says(&error, "on 2 devices");
    assert_says(&error, "`FusedOptimizer::with_config_on`");
    let model = vec![linear(ndarray), linear(flex)];
    let fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let mut fused = fused.with_config_on(config, ndarray).unwrap();
    let x = Tensor::<2>::ones([2, 4], ndarray);
    let loss = |model: &Vec<Linear>| model[1].forward(model[0].forward(x)).mean();
    fused.step(RATE, loss).unwrap();
}

/// A frozen weight that is a view of one element, but would be allocated in full on the host.
#[test]
fn offload_beyond_host_memory_is_refused_with_bytes() {
    let device = Device::flex().autodiff();
    let linear = || LinearConfig::new(2, 2).with_bias(false).init(&device);
    let mut model = vec![linear(), linear().no_grad()];
    let long = Tensor::<2>::ones([1, 1], &device.clone().inner()).expand([1 << 24, 1 << 24]);
    model[1].weight = Param::initialized(model[1].weight.id, Tensor::from_inner(long));
    let fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let config = config(&device, Offload::Weights(OffloadedBlocks::All));
    let error = refused(fused, FusedConfig::offload(config), &device);
    assert_says(
        &error,
        "`FusedConfig::offload` needs 1125899906842624 bytes",
    );
}

fn offload_options_that_contradict_are_refused(device: &Device) {
    let init = || Network::init(device);
    let to_host = |offload| FusedConfig::offload(config(device, offload));
    let fused = || FusedOptimizer::new(init(), AdamConfig::new().init()).unwrap();
    for part in [-0.5, 1.5, f64::NAN] {
        let blocks = Offload::Weights(OffloadedBlocks::Fraction(part));
        assert_says(&refused(fused(), to_host(blocks), device), "from 0 to 1");
    }
    let adamw = optim::AdamWConfig::new().build();
    let accumulates = FusedOptimizer::accumulating_in_state(init(), adamw).unwrap();
    let error = refused(accumulates, to_host(Offload::States), device);
    assert_says(&error, "accumulate in a buffer");
    if !device.supports_dtype(DType::F64) {
        return;
    }
    // A state would lose precision, and untrained statistics have another type.
    let weight = Tensor::<2>::ones([8, 8], (device, DType::F64));
    let of_f64 = FusedOptimizer::new(Param::from_tensor(weight), AdamConfig::new().init()).unwrap();
    let error = refused(of_f64, to_host(Offload::States), device);
    assert!(error.contains("F64") && error.contains("in f32"), "{error}");
    let computed = to_host(Offload::Updates).with_compute_dtype(Some(FloatDType::F64));
    let error = refused(fused(), computed, device);
    assert!(
        error.contains("running") && error.contains("F64"),
        "{error}"
    );
}

fn offloaded_training_after_panic_equals_untouched(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    for mode in modes(device) {
        let fuse = || {
            let fused = adam(twin(&initial), device, None);
            fused
                .with_config_on(with_inputs(device, mode), device)
                .unwrap()
        };
        let mut untouched = fuse();
        train_fused(&mut untouched, 4, RATE, loss);

        let mut fused = fuse();
        train_fused(&mut fused, 2, RATE, loss);
        for place in ["in the closure", "in the first run", "in the second run"] {
            let text = panic_of(|| {
                fused
                    .step(RATE, |model| {
                        assert_ne!(place, "in the closure");
                        let tokens = batches[2].clone();
                        let x: Tensor<2> = model.embedding.forward(tokens).flatten(0, 1);
                        // Without the norm, so that the statistics are unchanged.
                        let run =
                            |block: &Block, x| block.contract.forward(block.expand.forward(x));
                        let each = |x, block| gradient_checkpointing(block, x, run);
                        let x = model.blocks.iter().fold(x, each);
                        // The last block, so that the parameters of all other blocks are unchanged.
                        let fails = move |block: &Block, x: Tensor<2>| {
                            let is_second = block.expand.weight.val().is_tracked();
                            assert_ne!(is_second, place == "in the second run", "{place}");
                            run(block, x)
                        };
                        gradient_checkpointing(&model.blocks[3], x, fails).mean()
                    })
                    .unwrap()
            });
            assert_says(&text, place);
        }
        train_fused(&mut fused, 2, RATE, |model, step| loss(model, step + 2));
        assert_equal_weights(&untouched.model(), &fused.model());

        let panics = hook(|it| {
            assert_ne!(it.path, "blocks.2.norm.gamma", "at this one");
            Answer::Use
        });
        let mut fused = fuse().with_hook(ParamGroup::all(), panics);
        let text = panic_of(|| fused.step(RATE, |model| loss(model, 0)).unwrap());
        assert_says(&text, "at this one");
        // Those whose gradient had not arrived, and the one itself.
        let kept = [
            "blocks.2.norm.gamma",
            "blocks.0.expand.weight",
            "embedding.weight",
        ];
        assert_kept(&fuse().model(), &fused.model(), |path| kept.contains(&path));
    }
}

/// A parameter that is too small to be offloaded is updated in order.
fn offloaded_training_stopped_by_hook_uses_no_later_gradient(device: &Device) {
    let initial = Network::init(device);
    let tokens = batches(device).remove(0);
    let stop = |fused: Fused| {
        let stops = hook(|it| match it.path {
            "blocks.2.contract.weight" => Answer::Stop("here"),
            _ => Answer::Use,
        });
        let mut fused = fused.with_hook(ParamGroup::all(), stops);
        let stopped = fused.step(RATE, |model| model.loss(tokens.clone()));
        assert!(matches!(stopped, Err(FusedError::StoppedByHook { .. })));
        fused.model()
    };
    let expected = stop(adam(twin(&initial), device, None));
    for mode in modes(device) {
        let found = stop(adam(twin(&initial), device, mode));
        assert_equal_weights(&expected.valid(), &found.valid());
    }
}

fn offloaded_weight_read_after_backward_is_new_one(device: &Device) {
    let initial = Network::init(device);
    let tokens = batches(device).remove(0);
    for mode in modes(device) {
        let mut fused = adam(twin(&initial), device, mode);
        let read = fused
            .step_with_backward(RATE, |model| {
                let gradients = model.loss(tokens.clone()).backward();
                let blocks = model.valid().blocks;
                let read = blocks[0].expand.weight.val().into_data();
                (
                    read.iter::<f32>().collect::<Vec<_>>(),
                    GradientsParams::from_grads(gradients, model),
                )
            })
            .unwrap();
        let after = fused.model().blocks[0].expand.weight.val().into_data();
        assert_eq!(read, after.iter::<f32>().collect::<Vec<_>>(), "{mode:?}");
        assert_changed(&initial, &fused.model(), |_| true);
    }
}

/// Two trainings that wait for each other in their hooks. Each has its own threads.
fn offloaded_trainings_run_concurrently(device: &Device) {
    if !is_exact(device) {
        return; // Each thread would have a stream of its own.
    }
    let initial = Network::init(device);
    let tokens = batches(device).remove(0);
    let loss = |model: &Network, _| model.loss(tokens.clone());
    let stock = train_stock(twin(&initial), &mut AdamConfig::new().init(), 1, RATE, loss);
    let barrier = Arc::new(Barrier::new(2));
    let meets = || {
        let barrier = barrier.clone();
        hook(move |_| {
            barrier.wait();
            Answer::Use
        })
    };
    let fused = || {
        let fused = adam(twin(&initial), device, Offload::Updates);
        fused.with_hook(ParamGroup::all(), meets())
    };
    let both = [fused(), fused()];
    std::thread::scope(|scope| {
        for thread in both.map(|mut fused| {
            let tokens = tokens.clone();
            scope.spawn(move || {
                fused.step(RATE, |model| model.loss(tokens)).unwrap();
                fused.model()
            })
        }) {
            assert_equal_weights(&stock, &thread.join().unwrap());
        }
    });
}

#[test]
fn offloaded_inputs_of_two_threads_are_apart() {
    let device = Device::flex().autodiff();
    let initial = Network::init(&device);
    let batches = batches(&device);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    let train = |config| {
        let mut fused = adam(twin(&initial), &device, None)
            .with_config_on(config, &device)
            .unwrap();
        train_fused(&mut fused, 4, RATE, loss);
        fused.model()
    };
    let plain = train(FusedConfig::new());
    std::thread::scope(|scope| {
        let both = [Offload::Updates, Offload::States].map(|offload| {
            let config = with_inputs(&device, offload);
            scope.spawn(|| train(config))
        });
        for thread in both {
            assert_equal_weights(&plain, &thread.join().unwrap());
        }
    });
}

fn offloaded_model_for_inference_is_moved_and_not_trained(device: &Device) {
    let mode = Offload::Weights(OffloadedBlocks::All);
    let fused = adam(Network::init(device), device, mode);
    let host = host(device).inner();
    let tokens = batches(device).remove(0);
    let [here, there] = [device.clone().inner(), host].map(|device| {
        let valid = fused.valid().to_device(&device);
        let logits = valid.logits(tokens.clone().to_device(&device));
        logits.into_data().iter::<f64>().collect::<Vec<_>>()
    });
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4;
    assert!(here.iter().zip(&there).all(near), "{here:?} {there:?}");
    let again = FusedOptimizer::new(fused.valid().train(), AdamConfig::new().init());
    again.expect_err("it would come over from the host without a gradient");
}

on_every_backend!(
    offload_options_that_contradict_are_refused,
    offloaded_training_after_panic_equals_untouched,
    offloaded_training_stopped_by_hook_uses_no_later_gradient,
    offloaded_weight_read_after_backward_is_new_one,
    offloaded_trainings_run_concurrently,
    offloaded_model_for_inference_is_moved_and_not_trained,
);
