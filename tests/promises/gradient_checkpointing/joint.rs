//! Inputs and outputs of a checkpointed block receive the same gradients as without checkpointing.

use super::*;

type Pair = (Tensor<2>, Tensor<2>);

fn linear(block: &Block, x: Tensor<2>) -> Tensor<2> {
    block.contract.forward(block.expand.forward(x))
}

/// Trains without and with blocks on the `loss` of a step's number and batch, and calls `check` after each step.
fn assert_same_in_blocks(
    device: &Device,
    loss: impl Fn(&Stack, usize, Tensor<2>, bool) -> Tensor<1>,
    check: impl Fn(&StepReport, usize),
) {
    let xs = xs(device);
    let init = || Stack::init(device);
    assert_equal_in(&[false, true], init, |mut fused, in_blocks| {
        for (step, x) in xs.iter().enumerate() {
            fused
                .step(RATE, |model| loss(model, step, x.clone(), in_blocks))
                .unwrap();
            check(fused.last_step(), step);
        }
        fused
    });
}

/// With Adam, a zero gradient moves a parameter that has a momentum, but a missing gradient does not.
fn block_output_without_use_gives_no_gradient(device: &Device) {
    // Two blocks, each with its own output.
    let both = |blocks: &Vec<Block>, (a, b): Pair| (linear(&blocks[0], a), linear(&blocks[1], b));
    let loss = |model: &Stack, step: usize, x: Tensor<2>, recompute: bool| {
        let x = model.input.forward(x.clone());
        let input = (x.clone(), x);
        let (a, b) = block_if(recompute, &model.blocks, input, both);
        // The first step uses both.
        match step {
            0 => a.mean() + b.mean(),
            _ => a.mean(),
        }
    };
    assert_same_in_blocks(device, loss, |report, step| {
        let unused = if step == 0 { 0 } else { 4 };
        // No step uses the last two blocks, the norms and the output layer.
        assert_eq!(report.without_gradient, 2 * 6 + 4 + 2 + unused);
    });
}

/// Weight normalization: the weight of the block is computed from two parameters outside of it.
fn block_weight_computed_outside_gets_its_gradient(device: &Device) {
    let loss = |model: &Stack, _, x: Tensor<2>, recompute: bool| {
        let mut layer = model.blocks[0].expand.clone();
        let direction = model.blocks[1].expand.weight.val();
        let size = model.blocks[2].expand.weight.val();
        layer.weight = Param::initialized(layer.weight.id, direction.tanh() * size);
        let x = model.input.forward(x.clone());
        let run = |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh();
        let x = block_if(recompute, &layer, x, run);
        x.powi_scalar(2).mean()
    };
    assert_same_in_blocks(device, loss, |report, _| {
        // Two weights, and bias and weight of the input, and the bias of the layer.
        assert_eq!(report.updated, 5);
    });
}

/// One weight, under one id, in both layers of the block.
fn block_weight_computed_for_two_layers_gets_both_gradients(device: &Device) {
    let loss = |model: &Stack, _, x: Tensor<2>, recompute: bool| {
        let weight = model.input.weight.val().tanh();
        let weight = Param::initialized(model.blocks[0].expand.weight.id, weight);
        let layer = |bias: &Linear| Linear {
            weight: weight.clone(),
            bias: bias.bias.clone(),
        };
        let layers = vec![layer(&model.blocks[0].contract), layer(&model.input)];
        let run = |layers: &Vec<Linear>, x: Tensor<2>| loss_of_layers(layers, false, x);
        block_if(recompute, &layers, x.clone(), run)
    };
    assert_same_in_blocks(device, loss, |report, _| {
        assert_eq!(report.updated, 3);
    });
}

fn block_input_without_use_gets_gradient_of_zeros(device: &Device) {
    let loss = |model: &Stack, step: usize, x: Tensor<2>, recompute: bool| {
        let a = model.input.forward(x.clone());
        let b = linear(&model.blocks[1], x.clone());
        let both = move |block: &Block, (a, b): Pair| {
            let x = match step {
                0 => a + b,
                _ if recompute => a,
                _ => a + b * 0.0,
            };
            block.forward(x)
        };
        let x = block_if(recompute, &model.blocks[0], (a, b), both);
        x.powi_scalar(2).mean()
    };
    assert_same_in_blocks(device, loss, |report, _| {
        assert_eq!(report.updated, 2 + 4 + 6);
    });
}

/// A gate that closes, with momentum, next to a block with an unused input.
fn block_gradient_of_zero_moves_momentum(device: &Device) {
    let initial = Stack::init(device);
    let xs = xs(device);
    let momentum = || SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let loss = |model: &Stack, step: usize, in_blocks: bool| {
        let x = xs[step].clone();
        let gate = if step == 0 { 1.0 } else { 0.0 };
        let gated = move |layer: &Linear, x: Tensor<2>| layer.forward(x) * gate;
        let hidden = block_if(in_blocks, &model.blocks[0].expand, x.clone(), gated);
        let hidden = hidden + gated(&model.blocks[2].expand, x.clone());
        let unused = model.blocks[1].expand.forward(x);
        let ignoring = |layer: &Linear, (x, _): Pair| layer.forward(x).tanh();
        let contract = &model.blocks[0].contract;
        // The backward pass reaches this first.
        let x = block_if(in_blocks, contract, (hidden, unused), ignoring);
        x.powi_scalar(2).mean()
    };
    let copy = || copy(&initial, || Stack::init(device));
    let plain = |model: &Stack, step| loss(model, step, false);
    let stock = train_stock(copy(), &mut momentum().init(), 3, RATE, plain);
    let mut fused = FusedOptimizer::new(copy(), momentum().init()).unwrap();
    train_fused(&mut fused, 3, RATE, |model, step| loss(model, step, true));
    assert_equal_weights(&stock, &fused.model());
}

/// No optimizer of Burn applies momentum without a gradient, so a parameter that a block reads but does not use is
/// unchanged.
fn block_parameter_read_without_use_gets_no_gradient(device: &Device) {
    let loss = |model: &Stack, step: usize, x: Tensor<2>, recompute: bool| {
        let both = move |layers: &Vec<Block>, x: Tensor<2>| {
            let used = linear(&layers[0], x.clone());
            let read = linear(&layers[1], x);
            if step == 0 { used + read } else { used }
        };
        let x = block_if(recompute, &model.blocks, x.clone(), both);
        x.powi_scalar(2).mean()
    };
    assert_same_in_blocks(device, loss, |report, step| {
        let updated = if step == 0 { 8 } else { 4 };
        assert_eq!(report.updated, updated);
    });
}

fn blocks_without_parameters_or_output_elements_work(device: &Device) {
    let loss = |model: &Stack, _, x: Tensor<2>, recompute: bool| {
        let x = model.input.forward(x);
        let run = |block: &Block, x: Tensor<2>| {
            let x = block.forward(x);
            let empty = [[0..0, 0..6], [0..2, 0..0]].map(|part| x.clone().slice(part));
            (empty.to_vec(), vec![x], None::<Tensor<1>>)
        };
        let (empty, list, none) = block_if(recompute, &model.blocks[0], x, run);
        assert!(none.is_none());
        let x = list[0].clone();
        let twice = |_: &Vec<Linear>, x: Tensor<2>| x * 2.0;
        let nothing = Vec::<Linear>::new();
        let x = block_if(recompute, &nothing, x, twice);
        empty.into_iter().fold(x.mean(), |sum, it| sum + it.sum())
    };
    assert_same_in_blocks(device, loss, |report, _| assert_eq!(report.updated, 8));
}

/// Autodiff sums the three terms of its gradient in another order.
fn tensor_used_in_blocks_and_outside_agrees_within_rounding(device: &Device) {
    let initial = Stack::init(device);
    let xs = xs(device);
    let [plain, in_blocks] = [false, true].map(|in_blocks| {
        let model = copy(&initial, || Stack::init(device));
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
        train_fused(&mut fused, 3, RATE, |model, step| {
            let x = model.input.forward(xs[step].clone()).tanh();
            let run = |block: &Block, x: Tensor<2>| block.forward(x);
            let y = block_if(in_blocks, &model.blocks[0], x.clone(), run);
            let both = |block: &Block, (y, x): Pair| block.forward(y) * x;
            let z = block_if(in_blocks, &model.blocks[1], (y, x.clone()), both);
            model.output.forward(z + x).powi_scalar(2).mean()
        });
        fused.valid()
    });
    let tolerance = if is_exact(device) { 1e-6 } else { 1e-4 };
    assert_near_weights(&plain, &in_blocks, tolerance, 0.0);
}

/// Plain calls on one thread, and then every way on two threads.
const THREADS: [(bool, Way); 4] = [(false, plain), (true, plain), (true, each), (true, nested)];

/// The bases are ordinary leaves, whose gradients the block passes on. This is on the CPU, because each thread has its
/// own stream on other devices.
#[test]
fn lora_base_with_backward_on_another_thread_trains() {
    for device in cpus() {
        let lora = || {
            Stack::init(&device)
                .apply_lora(Lora::new(2, 4.0))
                .unfreeze()
        };
        let xs = xs(&device);
        assert_equal_in(&THREADS, lora, |mut fused, (threads, way)| {
            for x in &xs {
                fused
                    .step_with_backward(RATE, |model| {
                        let loss = model.loss(x.clone(), way);
                        let gradients = match threads {
                            true => std::thread::spawn(move || loss.backward()).join().unwrap(),
                            false => loss.backward(),
                        };
                        ((), GradientsParams::from_grads(gradients, model))
                    })
                    .unwrap();
                assert_eq!(fused.last_step().without_gradient, 0);
            }
            fused
        });
    }
}

/// Burn keeps the last update of running statistics separately for each thread.
fn blocks_on_thread_with_context_train_as_plain_ones(device: &Device) {
    let x = &xs(device)[0];
    assert!(StepContext::current().is_none());
    let init = || Stack::init(device);
    assert_equal_in(&THREADS, init, |mut fused, (threads, way)| {
        for _ in 0..3 {
            fused
                .step(RATE, |model| {
                    let x = model.input.forward(x.clone());
                    let context = StepContext::current().unwrap();
                    let run = || context.enter(|| way(&model.blocks, x));
                    let x = match threads {
                        true => std::thread::scope(|scope| scope.spawn(run).join().unwrap()),
                        false => run(),
                    };
                    model.output.forward(x).powi_scalar(2).mean()
                })
                .unwrap();
            assert_eq!(fused.last_step().without_gradient, 0);
        }
        fused
    });
}

on_every_backend!(
    block_output_without_use_gives_no_gradient,
    block_weight_computed_outside_gets_its_gradient,
    block_weight_computed_for_two_layers_gets_both_gradients,
    block_input_without_use_gets_gradient_of_zeros,
    block_gradient_of_zero_moves_momentum,
    block_parameter_read_without_use_gets_no_gradient,
    blocks_without_parameters_or_output_elements_work,
    tensor_used_in_blocks_and_outside_agrees_within_rounding,
    blocks_on_thread_with_context_train_as_plain_ones,
);
