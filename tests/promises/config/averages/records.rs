//! Averages in records and checkpoints.

use super::*;

/// A record of another program: `ndarray` does not have f16.
#[test]
fn average_in_f16_loads_on_device_without_f16() {
    let [_, ndarray] = cpus();
    let x = Tensor::<2>::ones([4, 8], &ndarray);
    let new = || {
        FusedOptimizer::new(linears(1, 8, &ndarray), AdamWConfig::new().init())
            .unwrap()
            .with_config(averaging(ema(0.5)))
            .unwrap()
    };
    let mut fused = new();
    let step = |fused: &mut FusedOptimizer<Vec<Linear>>| {
        fused
            .step(RATE, |model| loss_of_layers(model, false, x.clone()))
            .unwrap();
    };
    step(&mut fused);
    let mut contents = Contents::of(fused.to_record());
    let means = |it: &burn_pack::Tensor| it.name.ends_with(".average");
    let mut converted = 0;
    for index in 0..contents.tensors.len() {
        if means(&contents.tensors[index]) {
            converted += 1;
            let (_, dtype, shape, _, bytes) = contents.tensors[index].clone().into_parts().unwrap();
            let data = TensorData::from_bytes(bytes, shape, dtype).convert_dtype(DType::F16);
            let (bytes, shape, _) = data.into_parts();
            contents = contents.with_tensor(index, DType::F16, &shape, bytes);
        }
    }
    assert_eq!(converted, values(&fused.model()).len());
    let before = fused.averaged();
    fused.load_record(contents.into_record()).unwrap();
    for (before, after) in values(&before).into_iter().zip(values(&fused.averaged())) {
        let difference = (after - before).abs().max().into_scalar::<f32>();
        assert!(difference < 1e-3, "{difference}");
    }
    step(&mut fused);
}

#[test]
fn average_resumed_from_record_continues_to_bit() {
    let initial = init();
    let xs = batches(6);
    for config in configs() {
        for offload in [None, Some(offload_from_flex(Offload::States))] {
            let how = averaging(config).with_offload(offload);
            let start = |model: &Stack| {
                let model = copy(model, init);
                FusedOptimizer::new(model, optim::AdamWConfig::new().init())
                    .unwrap()
                    .with_config_on(how.clone(), &Device::flex())
                    .unwrap()
            };
            let train = |fused: &mut FusedOptimizer<Stack>, xs: &[Tensor<2>]| {
                for x in xs {
                    fused.step(RATE, |model| loss(model, x)).unwrap();
                }
            };
            let (mut whole, mut first) = (start(&initial), start(&initial));
            train(&mut whole, &xs);
            train(&mut first, &xs[..3]);
            let mut second = start(&first.model());
            second.load_record(first.to_record()).unwrap();
            assert_equal_weights(&first.averaged(), &second.averaged());
            train(&mut second, &xs[3..]);
            assert_equal_weights(&whole.averaged(), &second.averaged());
            assert_equal_weights(&whole.model(), &second.model());

            // Without averaging, and in stock Burn.
            let model = copy(&first.model(), init);
            let mut without = FusedOptimizer::new(model, optim::AdamWConfig::new().init()).unwrap();
            without.load_record(first.to_record()).unwrap();
            train(&mut without, &xs[3..]);
            let model = copy(&first.model(), init);
            let mut stock = AdamWConfig::new().init().load_record(first.to_record());
            let later = |model: &Stack, step: usize| loss(model, &xs[3 + step]);
            let model = train_stock(model, &mut stock, 3, RATE, later);
            assert_equal_weights(&model, &without.model());
            assert_equal_weights(&whole.model(), &without.model());
            assert_equal_weights(&without.model(), &without.averaged());

            // A record without averages: they start as the weights.
            let mut started = start(&first.model());
            train(&mut started, &xs[..1]);
            started.load_record(without.to_record()).unwrap();
            assert_equal_weights(&started.model(), &started.averaged());
        }
    }
}

#[test]
fn average_of_another_shape_is_refused_by_name() {
    let x = batches(1).remove(0);
    let mut fused = fused(&init(), averaging(ema(0.5)));
    fused.step(RATE, |model| loss(model, &x)).unwrap();
    let contents = Contents::of(fused.to_record());
    let is_average =
        |it: &burn_pack::Tensor| it.name.ends_with(".average") && it.shape.num_dims() == 2;
    let place = contents.tensors.iter().position(is_average);
    let place = place.expect("there is one");
    let mut said = |dtype: DType, shape: &[usize]| {
        let bytes = Bytes::from_bytes_vec(vec![0; 4 * shape.iter().product::<usize>()]);
        let damaged = contents.with_tensor(place, dtype, shape, bytes);
        let before = [fused.model(), fused.averaged()];
        let error = fused.load_record(damaged.into_record());
        assert_equal_weights(&before[0], &fused.model());
        assert_equal_weights(&before[1], &fused.averaged());
        error.expect_err("it is damaged")
    };
    for shape in [[16, 4], [1, 8], [8, 1], [1, 1]] {
        let error = said(DType::F32, &shape);
        let FusedError::RecordShape {
            path,
            state,
            expected,
            found,
        } = &error
        else {
            panic!("{error:?}")
        };
        assert!(path.ends_with(".weight") && state == "average", "{error}");
        assert_eq!((&expected[..], &found[..]), (&[8, 8][..], &shape[..]));
    }
    let error = said(DType::I32, &[8, 8]);
    assert_matches!(error, FusedError::UnreadableRecord { .. });
    let error = said(DType::F32, &[64]);
    assert_says(&error, ".weight");
}

/// A training without averages neither keeps loaded ones nor records them as its own.
#[test]
fn averages_loaded_without_averaging_are_dropped() {
    let initial = init();
    let xs = batches(3);
    let mut fused = fused(&initial, averaging(ema(0.9)));
    fused.step(RATE, |model| loss(model, &xs[0])).unwrap();
    let record = fused.to_record();
    let mut fused = fused.with_config(FusedConfig::new()).unwrap();
    fused.load_record(record).unwrap();
    fused.step(RATE, |model| loss(model, &xs[1])).unwrap();
    let record = fused.to_record();
    let mut fused = fused.with_config(averaging(ema(0.9))).unwrap();
    fused.load_record(record).unwrap();
    assert_equal_weights(&fused.model(), &fused.averaged());
}

/// SGD needs no tensor in its state, so it takes up the averages of a record without their numbers.
#[test]
fn averages_in_record_of_sgd_without_averaging_are_ignored() {
    let initial = init();
    let xs = batches(2);
    let sgd = |config: FusedConfig| {
        FusedOptimizer::new(copy(&initial, init), SgdConfig::new().init())
            .unwrap()
            .with_config(config)
            .unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let mut averaged = sgd(averaging(ema(0.5)));
    averaged.step(RATE, |model| loss(model, &xs[0])).unwrap();
    checkpoint.save(&averaged, &Progress::new(1)).unwrap();

    let mut without = sgd(FusedConfig::new());
    checkpoint.load::<()>(&mut without).unwrap();
    without.step(RATE, |model| loss(model, &xs[1])).unwrap();
    checkpoint.save(&without, &Progress::new(2)).unwrap();
    for config in [FusedConfig::new(), averaging(ema(0.5))] {
        let mut resumed = sgd(config);
        checkpoint.load::<()>(&mut resumed).unwrap();
        assert_equal_weights(&without.model(), &resumed.model());
        assert_equal_weights(&without.model(), &resumed.averaged());
    }
}
