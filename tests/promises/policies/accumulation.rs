//! Accumulation in a buffer equals Burn's `GradientsAccumulator`.

use burn::optim::*;

use super::*;
use crate::backends::on_every_backend;

/// Batches in groups of `size`; the last group is short if they don't come out even.
fn groups(device: &Device, size: usize) -> Vec<Vec<Tensor<2>>> {
    let batches = batches(device, 7);
    batches.chunks(size).map(<[_]>::to_vec).collect()
}

fn stock(mut model: Network, groups: &[Vec<Tensor<2>>]) -> Network {
    let mut optimizer = AdamWConfig::new().init();
    for group in groups {
        let mut accumulator = GradientsAccumulator::new();
        for x in group {
            let gradients = model.loss(x.clone()).backward();
            accumulator.accumulate(&model, GradientsParams::from_grads(gradients, &model));
        }
        model = optimizer.step(LEARNING_RATE, model, accumulator.grads());
    }
    model
}

fn accumulation_equals_stock_with_a_short_last_group(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    for size in [1, 3] {
        let groups = groups(device, size);
        let stock = stock(copy(), &groups);
        let mut fused = FusedOptimizer::new_ok(copy(), AdamWConfig::new().init());
        for group in &groups {
            let (last, before) = group.split_last().unwrap();
            for x in before {
                fused.accumulate_ok(|model| model.loss(x.clone()));
                assert_eq!(fused.last_step().updated, 0);
            }
            fused.step_ok(LEARNING_RATE, |model| model.loss(last.clone()));
            assert_eq!(fused.last_step().updated, 6);
        }
        assert_equal_weights(&stock, &fused.model());
    }
}

fn a_step_can_do_with_the_accumulated_gradients_alone(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let groups = groups(device, 3);
    let stock = stock(copy(), &groups);
    let fused = || FusedOptimizer::new_ok(copy(), AdamWConfig::new().init());
    // Two passes over the buffers need no second forward pass.
    let never_clips = GlobalNormClippingConfig::Exact(1e9);
    for mut fused in [
        fused(),
        fused().with_config_ok(FusedConfig::clipping(never_clips)),
    ] {
        for group in &groups {
            for x in group {
                fused.accumulate_ok(|model| model.loss(x.clone()));
            }
            fused.step_accumulated_ok(LEARNING_RATE);
            assert_eq!(fused.last_step().updated, 6);
            assert_eq!(fused.last_step().without_gradient, 0);
        }
        // Burn merges running statistics when they are read.
        assert_equal_weights(&stock.valid(), &fused.valid());
    }
}

fn parts_of_different_sizes_match_stock_mean(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let batch = Tensor::cat(batches(device, 2), 0);
    let items = batch.dims()[0];
    let parts = |ends: &[usize]| {
        let bounds = [&[0], ends, &[items]].concat();
        let part = |bounds: &[usize]| {
            let part = batch.clone().slice(bounds[0]..bounds[1]);
            (part, bounds[1] - bounds[0])
        };
        bounds.windows(2).map(part).collect::<Vec<_>>()
    };
    let never_clips = GlobalNormClippingConfig::Exact(1e9);
    let clipped = GlobalNormClippingConfig::ExactInBuffer(1e9);
    for ends in [&[][..], &[1], &[1, 1, 4]] {
        for clipping in [None, Some(never_clips), Some(clipped)] {
            let mut stock = (copy(), AdamWConfig::new().init());
            let fused = FusedOptimizer::new_ok(copy(), AdamWConfig::new().init());
            let mut fused = fused.with_config_ok(FusedConfig::new().with_clipping(clipping));
            for _ in 0..3 {
                let mut accumulator = GradientsAccumulator::new();
                let mut expected = None;
                for (part, size) in parts(ends).into_iter().filter(|(_, size)| *size > 0) {
                    let loss = stock.0.loss(part) * (size as f64 / items as f64);
                    let gradients = GradientsParams::from_grads(loss.backward(), &stock.0);
                    accumulator.accumulate(&stock.0, gradients);
                    let loss = loss.inner();
                    expected = Some(expected.map_or(loss.clone(), |sum: Tensor<1>| sum + loss));
                }
                stock.0 = stock.1.step(LEARNING_RATE, stock.0, accumulator.grads());
                let loss = fused
                    .step_in_parts(LEARNING_RATE, parts(ends), |model, part| {
                        model.loss(part.clone())
                    })
                    .unwrap();
                if is_exact(device) {
                    let expected = expected.unwrap().into_data();
                    loss.into_data().assert_eq(&expected, true);
                }
            }
            assert_equal_weights(&stock.0, &fused.model());
        }
    }
}

on_every_backend!(
    parts_of_different_sizes_match_stock_mean,
    accumulation_equals_stock_with_a_short_last_group,
    a_step_can_do_with_the_accumulated_gradients_alone,
);

#[test]
fn a_step_without_accumulated_gradients_is_refused() {
    let device = Device::flex().autodiff();
    let mut fused = FusedOptimizer::new_ok(Network::init(&device), SgdConfig::new().init());
    let before = fused.model();
    let error = fused.step_accumulated(LEARNING_RATE).unwrap_err();
    assert_eq!(error, FusedError::NothingAccumulated);
    assert!(error.to_string().contains("call `accumulate`"));
    assert_equal_weights(&before, &fused.model());

    let x = &batches(&device, 1)[0];
    fused.accumulate_ok(|model| model.loss(x.clone()));
    fused.step_accumulated_ok(LEARNING_RATE);
    let error = fused.step_accumulated(LEARNING_RATE).unwrap_err();
    assert_eq!(error, FusedError::NothingAccumulated);
}

#[test]
fn parts_without_items_or_with_failing_part_leave_nothing() {
    let device = Device::flex().autodiff();
    let mut fused = FusedOptimizer::new_ok(
        LinearConfig::new(2, 2).init(&device),
        SgdConfig::new().init(),
    );
    let before = fused.model();
    let x = Tensor::<2>::ones([3, 2], &device);
    let loss = |model: &Linear| model.forward(x.clone()).mean();
    let error = fused
        .step_in_parts(LEARNING_RATE, [(x.clone(), 0)], |model, part| {
            model.forward(part.clone()).mean()
        })
        .unwrap_err();
    assert_eq!(error, FusedError::NoItems);
    let error = fused
        .step_in_parts(
            LEARNING_RATE,
            [(true, 2), (false, 1)],
            |model, connected| match connected {
                true => loss(model),
                false => Tensor::ones([1], &device),
            },
        )
        .unwrap_err();
    assert!(matches!(error, FusedError::LossNotTracked), "{error}");
    let error = fused.step_accumulated(LEARNING_RATE).unwrap_err();
    assert_eq!(error, FusedError::NothingAccumulated);
    let panics = |model: &Linear, connected: &bool| match connected {
        true => loss(model),
        false => panic!("in the second part"),
    };
    let message = panic_of(|| fused.step_in_parts(LEARNING_RATE, [(true, 2), (false, 1)], panics));
    assert!(message.contains("in the second part"), "{message}");
    let error = fused.step_accumulated(LEARNING_RATE).unwrap_err();
    assert_eq!(error, FusedError::NothingAccumulated);
    assert_equal_weights(&before, &fused.model());
}
