//! However the model is trained.

use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;

use super::layers::Convolutional;
use super::*;
use crate::backends::on_every_backend;

fn gradient_checkpointing(device: &Device) {
    let device = &device.clone().gradient_checkpointing();
    let x = random([6, 1, 4, 4], device);
    assert_fused_equals_stock(
        || Convolutional::init(device),
        |model, _| square_mean(Gelu::new().forward(model.forward(x.clone()))),
        |_| true,
    );
}

/// A model of one dtype, trained both ways.
fn assert_fused_equals_stock_in(device: &Device, dtype: DType) {
    let weight = |shape: [usize; 2]| {
        let value = Tensor::random(shape, Distribution::Default, (device, dtype));
        Param::from_tensor(value)
    };
    #[derive(Module, Debug)]
    struct Weights {
        first: Param<Tensor<2>>,
        second: Param<Tensor<2>>,
    }

    let x = random([5, 3], device).cast(dtype);
    let init = || Weights {
        first: weight([3, 4]),
        second: weight([4, 2]),
    };
    assert_eq!(init().first.val().dtype(), dtype);
    assert_fused_equals_stock(
        init,
        |model, _| {
            let x = x.clone().matmul(model.first.val()).tanh();
            square_mean(x.matmul(model.second.val()))
        },
        |_| true,
    );
}

fn models_in_f64(device: &Device) {
    assert_fused_equals_stock_in(device, DType::F64);
}

#[test]
fn models_in_f16() {
    assert_fused_equals_stock_in(&Device::flex().autodiff(), DType::F16);
}

#[test]
fn models_in_bf16() {
    assert_fused_equals_stock_in(&Device::flex().autodiff(), DType::BF16);
}

fn groups_with_their_own_optimizer_and_learning_rate(device: &Device) {
    let x = random([5, 3], device);
    let loss = |model: &TwoHeads| {
        let x = model.body.forward(x.clone());
        square_mean(model.first.forward(x.clone()) - model.second.forward(x))
    };
    let optimizer = || {
        let group = ParamGroup::from_predicate("first");
        AdamWConfig::new()
            .init()
            .with_group(group, SgdConfig::new().build(), None)
    };
    let rate = || {
        let group = ParamGroup::from_predicate("body");
        ModuleLrScheduler::new(ConstantLr::new(1e-2))
            .with_group(group, ConstantLr::new(1e-3))
            .step()
    };
    let initial = TwoHeads::init(device);

    let mut stock = copy(&initial, || TwoHeads::init(device));
    let mut stock_optimizer = optimizer();
    let fused = copy(&initial, || TwoHeads::init(device));
    let mut fused = FusedOptimizer::new_ok(fused, optimizer());
    for _ in 0..STEPS {
        let gradients = GradientsParams::from_grads(loss(&stock).backward(), &stock);
        stock = stock_optimizer.step(rate(), stock, gradients);
        fused.step_ok(rate(), loss);
    }
    assert_equal_weights(&stock, &fused.model());
}

fn accumulated_gradients(device: &Device) {
    let batches: Vec<Tensor<2>> = (0..5).map(|_| random([5, 3], device)).collect();
    let init = || {
        TwoHeads::init(device)
            .apply_lora(Lora::new(2, 4.0))
            .unfreeze()
    };
    // The last batch of a group does not reach the second head: it is stepped all the same.
    let loss = |model: &TwoHeads, batch: usize| {
        let x = model.body.forward(batches[batch].clone());
        let output = model.first.forward(x.clone());
        square_mean(match batch {
            2 => output,
            _ => output - model.second.forward(x),
        })
    };
    let groups: [&[usize]; 2] = [&[0, 1, 2], &[3, 4]];
    let initial = init();

    let mut stock = copy(&initial, init);
    let mut optimizer = AdamWConfig::new().init();
    for group in groups {
        let mut accumulator = GradientsAccumulator::new();
        for batch in group {
            let gradients = loss(&stock, *batch).backward();
            let gradients = GradientsParams::from_grads(gradients, &stock);
            accumulator.accumulate(&stock, gradients);
        }
        stock = optimizer.step(RATE, stock, accumulator.grads());
    }

    let mut fused = FusedOptimizer::new_ok(copy(&initial, init), AdamWConfig::new().init());
    for group in groups {
        let (last, first) = group.split_last().expect("a group has batches");
        for batch in first {
            let before = fused.model();
            fused.accumulate_ok(|model| loss(model, *batch));
            assert_equal_weights(&before, &fused.model());
        }
        fused.step_ok(RATE, |model| loss(model, *last));
    }
    assert_equal_weights(&stock, &fused.model());
}

on_every_backend!(
    gradient_checkpointing,
    models_in_f64,
    groups_with_their_own_optimizer_and_learning_rate,
    accumulated_gradients,
);
