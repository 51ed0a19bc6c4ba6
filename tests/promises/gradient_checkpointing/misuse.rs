//! Mistakes with recomputed blocks are errors that name the block, and change nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A model to train, another with its weights, and an input.
fn start() -> (FusedOptimizer<Stack>, Stack, Tensor<2>) {
    let device = Device::flex().autodiff();
    let initial = Stack::init(&device);
    let before = copy(&initial, || Stack::init(&device));
    let fused = FusedOptimizer::new(initial, SgdConfig::new().init()).unwrap();
    (fused, before, xs(&device).remove(0))
}

/// Returns the message of the panic of a step of `fused`.
#[track_caller]
fn message<M: Module>(fused: &mut FusedOptimizer<M>, loss: impl Fn(&M) -> Tensor<1>) -> String {
    panic_of(|| fused.step(RATE, loss).unwrap())
}

/// The compiler refuses captured tensors, but it does not check constants and fields that are not parameters.
#[test]
fn block_that_computes_with_outside_tensor_is_refused() {
    for in_a_constant in [true, false] {
        let (mut fused, before, x) = start();
        let message = message(&mut fused, |model| {
            let block = &model.blocks[2];
            let x = model.input.forward(x.clone());
            let output = if in_a_constant {
                let outside = Constant(x.clone());
                let sum = |block: &Block, (x, Constant(outside))| block.forward(x) + outside;
                gradient_checkpointing(block, (x, outside), sum)
            } else {
                let block = (block.clone(), x.clone());
                let sum =
                    |(block, outside): &(Block, Tensor<2>), x| block.forward(x) + outside.clone();
                gradient_checkpointing(&block, x, sum)
            };
            output.mean()
        });
        let start = "the recomputed block `blocks.2` (";
        assert!(message.starts_with(start), "{message}");
        let end = "outside of it: pass that as an input";
        assert!(message.ends_with(end), "{message}");
        assert_equal_weights(&before, &fused.model());
    }
}

/// Burn's generators are not used, so nothing is seeded again.
#[test]
fn block_with_own_generator_is_refused() {
    let (mut fused, before, x) = start();
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let error = fused.step(RATE, |model| {
        let x = model.input.forward(x.clone());
        let block = |block: &Block, x| {
            let scale = RUNS.fetch_add(1, Ordering::Relaxed) + 1;
            block.forward(x) * scale as f64
        };
        gradient_checkpointing(&model.blocks[2], x, block).mean()
    });
    let error = error.unwrap_err();
    assert_matches!(error, FusedError::RandomNumbers { .. });
    assert_says(&error, "it has its own generator");
    assert_equal_weights(&before, &fused.model());
}

#[test]
fn block_with_tensors_of_several_types_trains_as_plain_one() {
    let device = Device::flex().autodiff();
    let x = xs(&device).remove(0);
    let init = || Stack::init(&device);
    assert_equal_in(&[false, true], init, |mut fused, recompute| {
        train_fused(&mut fused, 3, RATE, |model, _| {
            let first = model.input.forward(x.clone());
            let wide = model.input.forward(x.clone().neg()).cast(FloatDType::F64);
            let run = |block: &Block, (x, scale): (Tensor<2>, Tensor<2>)| {
                let x = block.forward(x) * scale.cast(FloatDType::F32);
                (x.clone(), x.tanh().cast(FloatDType::F64))
            };
            let (x, wide) = block_if(recompute, &model.blocks[0], (first, wide), run);
            x.mean() + wide.mean().cast(FloatDType::F32)
        });
        assert_eq!(fused.last_step().updated, 8);
        fused
    });
}

#[test]
fn block_panic_in_first_run_names_block() {
    let (mut fused, before, x) = start();
    let message = message(&mut fused, |model| {
        let x = model.input.forward(x.clone());
        let block = |block: &Block, x| {
            let _: Tensor<2> = block.forward(x);
            panic!("as written")
        };
        let x: Tensor<2> = gradient_checkpointing(&model.blocks[1], x, block);
        x.mean()
    });
    let start = "the first run of the recomputed block `blocks.1` (";
    assert!(message.starts_with(start), "{message}");
    assert!(message.ends_with("panicked: as written"), "{message}");
    assert_equal_weights(&before, &fused.model());
}

#[test]
fn block_panic_in_second_run_leaves_block_unchanged() {
    let (mut fused, before, x) = start();
    let runs = Arc::new(AtomicUsize::new(0));
    let message = message(&mut fused, |model| {
        model.loss(x.clone(), |blocks, x| {
            let once = |block: &Block, (x, Constant(runs)): (_, Constant<Arc<AtomicUsize>>)| {
                assert_eq!(runs.fetch_add(1, Ordering::Relaxed), 0, "only once");
                block.forward(x)
            };
            let input = (x, Constant(runs.clone()));
            let x = gradient_checkpointing(&blocks[0], input, once);
            plain(&blocks[1..], x)
        })
    });
    let start = "the second run of the recomputed block `blocks.0` (";
    assert!(message.starts_with(start), "{message}");
    assert_says(&message, "are unchanged) panicked: ");
    assert_says(&message, "only once");
    assert_kept(&before, &fused.model(), |path| {
        path.starts_with("input") || path.starts_with("blocks.0")
    });
    // Training goes on.
    fused
        .step(RATE, |model| model.loss(x.clone(), each))
        .unwrap();
    assert_eq!(fused.last_step().without_gradient, 0);
    assert_nothing_accumulated(&mut fused);
}

/// Stochastic depth that draws from its own generator: the runs take different branches.
#[test]
fn block_runs_that_read_other_parameters_are_an_error() {
    let without_norm = |block: &Block, x| block.contract.forward(block.expand.forward(x).tanh());
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    // The run in which the block skips its layer, and `true` if it is in another block.
    for (skips, is_nested) in [(1, false), (0, false), (1, true)] {
        RUNS.store(0, Ordering::SeqCst);
        let (mut fused, before, x) = start();
        let run = move |block: &Block, x: Tensor<2>| {
            let run = RUNS.fetch_add(1, Ordering::SeqCst);
            let hidden = block.expand.forward(x.clone()).tanh();
            match run == skips {
                true => x + hidden.narrow(1, 0, 6),
                false => x + block.contract.forward(hidden),
            }
        };
        let outer = move |block: &Block, x: Tensor<2>| block_if(is_nested, block, x, run);
        let result = fused.step(RATE, |model| {
            let x = model.input.forward(x.clone());
            let x = gradient_checkpointing(&model.blocks[2], x, without_norm);
            let x = gradient_checkpointing(&model.blocks[1], x, outer);
            model.output.forward(x).mean()
        });
        let Err(error @ FusedError::BlockReads { .. }) = result else {
            panic!("{result:?}")
        };
        let which = ["only the second run", "only the first run"][skips];
        let message = error.to_string();
        assert!(message.starts_with(which), "{message}");
        assert_says(&message, "`blocks.1.contract.weight`");
        assert_changed(&before, &fused.model(), |path| path.starts_with("output"));
        // Training goes on.
        fused
            .step(RATE, |model| model.loss(x.clone(), each))
            .unwrap();
        assert_eq!(fused.last_step().without_gradient, 0);
    }
}

#[test]
fn block_called_on_another_thread_is_refused() {
    let (mut fused, before, x) = start();
    let message = message(&mut fused, |model| {
        let called = std::thread::scope(|scope| {
            let call = || each(&model.blocks, model.input.forward(x.clone()));
            scope.spawn(call).join()
        });
        match called {
            Ok(x) => x.mean(),
            Err(payload) => std::panic::resume_unwind(payload),
        }
    });
    assert_says(&message, "`promises::common::residual::Block`");
    assert_says(&message, "on another thread");
    assert_equal_weights(&before, &fused.model());

    // Inference may use it.
    let valid = fused.valid();
    let seen = std::thread::scope(|scope| {
        let call = || valid.loss(x.clone().inner(), each).into_data();
        scope.spawn(call).join().unwrap()
    });
    assert_eq!(seen, valid.loss(x.inner(), plain).into_data());
}

/// A linear layer on another device between two.
fn on_two_devices() -> Vec<Linear> {
    let [device, other] = cpus();
    let linear = |device| LinearConfig::new(6, 6).init(device);
    [&device, &other, &device].map(linear).into()
}

#[test]
fn block_on_another_device_is_named() {
    let device = Device::flex().autodiff();
    let x = xs(&device).remove(0);
    let mut fused = FusedOptimizer::new(on_two_devices(), SgdConfig::new().init()).unwrap();
    let message = message(&mut fused, |model| {
        let run = |linear: &Linear, x| linear.forward(x);
        let forward = |x, linear| gradient_checkpointing(linear, x, run);
        model.iter().fold(x.clone(), forward).mean()
    });
    let start = "the first run of the recomputed block `1` (";
    assert!(message.starts_with(start), "{message}");
}

#[test]
fn block_on_another_device_trains_if_activations_are_moved() {
    let device = Device::flex().autodiff();
    let x = xs(&device).remove(0);
    assert_equal_in(&[false, true], on_two_devices, |mut fused, recompute| {
        train_fused(&mut fused, 3, RATE, |model, _| {
            let run = |linear: &Linear, x: Tensor<2>| {
                let x = x.to_device(&linear.weight.device());
                linear.forward(x).tanh()
            };
            let forward = |x, linear| block_if(recompute, linear, x, run);
            model.iter().fold(x.clone(), forward).mean()
        });
        assert_eq!(fused.last_step().without_gradient, 0);
        fused
    });
}

#[test]
fn block_of_ended_step_is_refused_in_next_step() {
    let (mut fused, _, x) = start();
    let run = |layer: &Linear, x: Tensor<2>| layer.forward(x);
    let (_, state) = fused
        .step(RATE, |model| {
            let state = gradient_checkpointing(&model.input, x.clone(), run);
            (
                model.blocks[0].forward(state.clone().detach()).mean(),
                state,
            )
        })
        .unwrap();
    let refused = message(&mut fused, |model| {
        model.blocks[1].forward(state.clone()).mean()
    });
    let start = "the block `input` (";
    assert!(refused.starts_with(start), "{refused}");
    let end = "Detach the tensor in the closure";
    assert!(refused.ends_with(end), "{refused}");
    let state = state.detach();
    let loss = |model: &Stack| model.blocks[1].forward(state.clone()).mean();
    fused.step(RATE, loss).unwrap();
    assert!(fused.last_step().updated > 0);
}

/// In the first run the parameters of a block are constants, and nothing is refused.
#[test]
fn backward_inside_of_block_is_refused() {
    let (mut fused, before, x) = start();
    let message = message(&mut fused, |model| {
        let run = |layer: &Linear, x: Tensor<2>| {
            let probe = x.clone().detach().require_grad();
            let gradients = layer.forward(probe.clone()).sum().backward();
            let direction = Tensor::from_inner(probe.grad(&gradients).unwrap());
            layer.forward(x).mean() + direction.mean()
        };
        gradient_checkpointing(&model.input, x.clone(), run)
    });
    assert_says(
        &message,
        "inside of a block under gradient checkpointing, for parameter `input.",
    );
    assert_equal_weights(&before, &fused.model());
}

/// After the step nothing else reports the failure.
#[test]
fn stock_block_that_fails_after_step_panics() {
    let (mut fused, _, x) = start();
    let stock = LinearConfig::new(x.dims()[1], 1).init(&x.device());
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let mut judged = |fails: bool| {
        RUNS.store(usize::from(!fails), Ordering::Relaxed);
        let (_, judged) = fused
            .step(RATE, |model| {
                let run = |stock: &Linear, x| {
                    assert_ne!(RUNS.fetch_add(2, Ordering::Relaxed), 2, "second run");
                    stock.forward(x)
                };
                let judged = gradient_checkpointing(&stock, x.clone(), run);
                (model.input.forward(x.clone()).mean(), judged.mean())
            })
            .unwrap();
        judged
    };
    let gradients = judged(false).backward();
    assert!(stock.weight.val().grad(&gradients).is_some());
    let judged = judged(true);
    assert_says(&panic_of(|| judged.backward()), "second run");
}

/// The hook runs a training of its own, whose blocks are plain calls.
#[test]
fn stock_blocks_in_hook_receive_gradients() {
    struct Differentiates([Linear; 2], Arc<AtomicUsize>);
    impl GradientHook for Differentiates {
        fn call<const D: usize>(
            &self,
            _parameter: HookedParameter<'_, D>,
            gradient: Tensor<D>,
        ) -> GradientFlow<D> {
            for stock in &self.0 {
                let device = Device::flex().autodiff();
                let x = Tensor::<2>::ones([2, 6], &device).require_grad();
                let run = |stock: &Linear, x| stock.forward(x);
                let gradients = gradient_checkpointing(stock, x.clone(), run)
                    .mean()
                    .backward();
                assert!(x.grad(&gradients).is_some());
                let of_weight = stock.weight.val().grad(&gradients);
                assert_eq!(of_weight.is_some(), stock.weight.is_require_grad());
            }
            self.1.fetch_add(1, Ordering::Relaxed);
            GradientFlow::Continue(gradient)
        }
    }
    let (fused, _, x) = start();
    let stock: Linear = LinearConfig::new(6, 1).init(&x.device());
    let calls = Arc::new(AtomicUsize::new(0));
    let hook = Differentiates([stock.clone(), stock.freeze()], calls.clone());
    let mut fused = fused.with_hook(ParamGroup::all(), hook);
    fused
        .step(RATE, |model| model.input.forward(x.clone()).mean())
        .unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}
