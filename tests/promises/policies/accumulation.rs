//! Accumulation in a buffer equals Burn's `GradientsAccumulator`. (Groups whose last micro-batch is a step are in
//! `fidelity::training`.)

use std::cell::RefCell;

use super::*;

fn accumulated_gradients_alone_match_stock(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device, 7);
    let mut optimizer = AdamWConfig::new().init();
    // Two passes over the buffers need no second forward pass.
    let trainings = [FusedConfig::new(), FusedConfig::exact(1e9)].map(|config| {
        FusedOptimizer::new(initial.copied(), optimizer.clone())
            .unwrap()
            .with_config(config)
            .unwrap()
    });
    let stock = batches.chunks(3).fold(initial.copied(), |model, group| {
        step_stock(model, &mut optimizer, LEARNING_RATE, group, Network::loss)
    });
    for mut fused in trainings {
        for group in batches.chunks(3) {
            for x in group {
                fused.accumulate(|model| model.loss(x)).unwrap();
            }
            fused.step_accumulated(LEARNING_RATE).unwrap();
            assert_eq!(fused.last_step().updated, 6);
            assert_eq!(fused.last_step().without_gradient, 0);
        }
        // Burn merges running statistics when they are read.
        assert_equal_weights(&stock.valid(), &fused.valid());
    }
}

fn parts_of_different_sizes_match_stock_mean(device: &Device) {
    let initial = Network::init(device);
    let batch = Tensor::cat(batches(device, 2), 0);
    let items = batch.dims()[0];
    let never_clips = GlobalNormClippingConfig::Exact(1e9);
    let in_buffer = GlobalNormClippingConfig::ExactInBuffer(1e9);
    for ends in [&[0, 10][..], &[0, 1, 10], &[0, 1, 1, 4, 10]] {
        let part = |ends: &[usize]| (batch.clone().slice(ends[0]..ends[1]), ends[1] - ends[0]);
        let parts: Vec<_> = ends.windows(2).map(part).collect();
        let mut with_items = parts.clone();
        with_items.retain(|(_, size)| *size > 0);
        for clipping in [None, Some(never_clips), Some(in_buffer)] {
            let (mut stock, mut optimizer) = (initial.copied(), AdamWConfig::new().init());
            let mut fused = FusedOptimizer::new(initial.copied(), optimizer.clone())
                .unwrap()
                .with_config(FusedConfig::new().with_clipping(clipping))
                .unwrap();
            for _ in 0..3 {
                let losses = RefCell::new(Vec::new());
                let weighted = |model: &Network, (part, size): &(Tensor<2>, usize)| {
                    let loss = model.loss(part) * (*size as f64 / items as f64);
                    losses.borrow_mut().push(loss.clone().inner());
                    loss
                };
                stock = step_stock(stock, &mut optimizer, LEARNING_RATE, &with_items, weighted);
                let loss = fused.step_in_parts(LEARNING_RATE, parts.clone(), Network::loss);
                if is_exact(device) {
                    let expected = losses.take().into_iter().reduce(|a, b| a + b).unwrap();
                    let loss = loss.unwrap().into_data();
                    loss.assert_eq(&expected.into_data(), true);
                }
            }
            assert_equal_weights(&stock, &fused.model());
        }
    }
}

on_every_backend!(
    parts_of_different_sizes_match_stock_mean,
    accumulated_gradients_alone_match_stock,
);

#[test]
fn step_without_accumulated_gradients_is_refused() {
    let device = flex();
    let mut fused = FusedOptimizer::new(Network::init(&device), SgdConfig::new().init()).unwrap();
    let before = fused.model();
    let error = fused.step_accumulated(LEARNING_RATE).unwrap_err();
    assert_eq!(error, FusedError::NothingAccumulated);
    assert_says(&error, "call `accumulate`");
    assert_equal_weights(&before, &fused.model());

    fused
        .accumulate(|model| model.loss(&batches(&device, 1)[0]))
        .unwrap();
    fused.step_accumulated(LEARNING_RATE).unwrap();
    assert_nothing_accumulated(&mut fused);
}

#[test]
fn parts_without_items_or_with_failing_part_leave_nothing() {
    let device = flex();
    let model: Linear = LinearConfig::new(2, 2).init(&device);
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
    let before = fused.model();
    let x = Tensor::<2>::ones([3, 2], &device);
    let loss = |model: &Linear, _: &bool| model.forward(x.clone()).mean();
    let error = fused.step_in_parts(LEARNING_RATE, [(true, 0)], loss);
    assert_eq!(error.unwrap_err(), FusedError::NoItems);

    let parts = [(true, 2), (false, 1)];
    let detached = |model: &Linear, connected: &bool| match connected {
        true => loss(model, connected),
        false => Tensor::ones([1], &device),
    };
    let error = fused.step_in_parts(LEARNING_RATE, parts, detached);
    assert_matches!(error, Err(FusedError::LossNotTracked));
    assert_nothing_accumulated(&mut fused);

    let panics = |model: &Linear, connected: &bool| match connected {
        true => loss(model, connected),
        false => panic!("in the second part"),
    };
    let message = panic_of(|| fused.step_in_parts(LEARNING_RATE, parts, panics));
    assert_says(&message, "in the second part");
    assert_nothing_accumulated(&mut fused);
    assert_equal_weights(&before, &fused.model());
}

#[test]
fn dry_run_between_micro_batches_changes_nothing() {
    let device = flex();
    let skips = LossScalingConfig::new().with_overflow(Overflow::SkipParameter);
    let lagged = FusedConfig::clipping(GlobalNormClippingConfig::Lagged(0.1));
    for config in [
        FusedConfig::scaling(skips),
        lagged.with_loss_scaling(Some(skips)),
    ] {
        let initial = Network::init(&device);
        let batches = batches(&device, 2);
        let trained = |dry: Option<Tensor<2>>| {
            let fused = FusedOptimizer::new(initial.copied(), AdamConfig::new().init()).unwrap();
            let mut fused = fused.with_config(config.clone()).unwrap();
            fused.accumulate(|model| model.loss(&batches[0])).unwrap();
            if let Some(batch) = dry {
                fused.dry_run(|model| model.loss(&batch)).unwrap();
            }
            fused.step_accumulated(LEARNING_RATE).unwrap();
            fused.model()
        };
        let expected = trained(None);
        for batch in [batches[1].clone(), infinite(&device)] {
            assert_equal_weights(&expected, &trained(Some(batch)));
        }
    }
}
