//! Weights and states go from any number of devices to any other, and to stock Burn and back.

use super::rows::table::offloaded;
use super::*;

/// A training of several steps.
#[derive(Clone, Copy, Debug)]
enum By {
    Stock,
    One,
    Ranks(usize, Sharding),
}

/// Trains on the same sums, whoever does it, and hands model and optimizer on.
fn train(
    by: By,
    model: Network,
    optimizer: ModuleOptimizer,
    batch: &Tensor<2, Int>,
) -> (Network, ModuleOptimizer) {
    // Sums of two equal halves: the same to the bit, whoever adds them up.
    let half = |model: &Network, batch| model.loss(batch) / 2.0;
    match by {
        By::Stock => {
            let mut optimizer = optimizer;
            let loss = half(&model, batch.clone()) + half(&model, batch.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            (optimizer.step(RATE, model, gradients), optimizer)
        }
        By::One => {
            let mut fused = FusedOptimizer::new_ok(model, optimizer);
            fused.accumulate_ok(|model| half(model, batch.clone()));
            fused.step_ok(RATE, |model| half(model, batch.clone()));
            fused.into_parts()
        }
        By::Ranks(ranks, sharding) => {
            let mut fused = FusedReplicas::new_ok(model, optimizer, flex(ranks))
                .with_config_ok(FusedConfig::sharded(sharding));
            fused.step_ok(RATE, vec![batch.clone(); 2], half);
            fused.into_parts()
        }
    }
}

#[test]
fn records_go_on_with_any_number_of_devices() {
    let (_alone, device, initial) = begin();
    let batches = tokens(device, &[2, 4, 3, 2, 4, 2]);
    let all = |ways: [By; 6]| {
        let mut model = copy(&initial, || Network::init(device));
        let mut optimizer = adamw();
        for (by, batch) in ways.into_iter().zip(&batches) {
            let (trained, with_state) = train(by, model, optimizer, batch);
            // Through records, as after a restart.
            model = copy(&trained, || Network::init(device));
            optimizer = adamw().load_record(with_state.to_record());
        }
        model
    };
    let (state, full) = (Sharding::State, Sharding::Full);
    let expected = all([By::Stock; 6]);
    let mixed = all([
        By::Ranks(2, state),
        By::One,
        By::Ranks(4, full),
        By::Stock,
        By::Ranks(3, state),
        By::Ranks(2, full),
    ]);
    assert_near_weights(&expected, &mixed, 1e-5, 0.0);
}

#[test]
fn replicas_can_be_made_again_with_another_config() {
    let (_alone, _, initial) = begin();
    let devices = flex(2);
    let steps: Vec<_> = (0..8).map(|_| tokens(&devices[0], &[2, 3])).collect();
    let model = copy(&initial, || Network::init(&devices[0]));
    let expected = train_stock(model, &devices, &steps, Stock::Sharded);
    let model = copy(&initial, || Network::init(&devices[0]));
    let mut fused = FusedReplicas::new_ok(model, adamw(), devices.clone());
    let waits = |offload| offloaded(offload).offload;
    let changes: [&dyn Fn(FusedConfig) -> FusedConfig; 8] = [
        &|config| config.with_sharding(Sharding::Full),
        &|config| config.with_ownership(Ownership::BySize),
        &|config| config.with_offload(waits(Offload::States)),
        &|config| config.with_sharding(Sharding::State),
        &|config| config.with_offload(waits(Offload::Updates)),
        &|config| config.with_max_bytes_in_flight(Some(0)),
        &|config| config.with_offload(waits(Offload::Weights(OffloadedBlocks::All))),
        &|config| config.with_offload(None),
    ];
    for (batches, change) in steps.iter().zip(changes) {
        fused.step_ok(RATE, batches.clone(), Network::loss);
        let config = change(fused.config().clone());
        fused = fused.with_config_ok(config);
    }
    assert_equal_weights(&expected, &fused.model());
}

#[test]
fn owners_are_told_and_shared_out_by_size() {
    let _alone = alone();
    let model = Network::init(&flex(1)[0]);
    let fused = FusedReplicas::new_ok(model, adamw(), flex(3))
        .with_config_ok(FusedConfig::new().with_ownership(Ownership::BySize));
    // The embedding has 54 elements, each of five weights 36.
    let embedding = fused.owner("embedding.weight").unwrap();
    for layer in ["layers.0.weight", "layers.1.weight"] {
        assert_ne!(fused.owner(layer).unwrap(), embedding);
    }
    assert_eq!(fused.owner("layers.9.weight"), None);
    let fused = fused.with_config_ok(FusedConfig::new().with_ownership(Ownership::MainDevice));
    assert_eq!(fused.owner("layers.3.bias"), Some(0));
}

/// It stays an ordinary leaf, and has an owner that steps it all the same.
#[test]
fn owner_of_lora_base_in_training_is_told() {
    let _alone = alone();
    let base = LinearConfig::new(4, 4).init(&flex(1)[0]);
    let model = base.apply_lora(Lora::new(2, 4.0));
    let fuse = |model: Linear| {
        let config = FusedConfig::new().with_ownership(Ownership::MainDevice);
        FusedReplicas::new_with_config(model, adamw(), flex(2), config).unwrap()
    };
    assert_eq!(fuse(model.clone()).owner("weight"), None);
    assert_eq!(fuse(model.unfreeze()).owner("weight"), Some(0));
}

#[test]
fn bad_numbers_of_devices_and_batches_are_errors() {
    let _alone = alone();
    let model = || Network::init(&flex(1)[0]);
    let reason = |error: FusedError| match error {
        FusedError::Replicas { reason } => reason,
        error => panic!("{error}"),
    };
    let none = FusedReplicas::new(model(), adamw(), []).unwrap_err();
    assert!(reason(none).contains("no devices"));
    let mut fused = FusedReplicas::new_ok(model(), adamw(), flex(2));
    for rows in [&[] as &[usize], &[2, 2, 2]] {
        let batches = tokens(&flex(1)[0], rows);
        let error = fused.step(RATE, batches, Network::loss).unwrap_err();
        assert!(reason(error).contains(&format!("{} batches for 2 ranks", rows.len())));
    }
}

#[test]
fn the_states_of_a_removed_layer_leave_the_record_of_replicas() {
    let _alone = alone();
    let device = &flex(1)[0];
    let batches = tokens(device, &[2, 4]);
    for sharding in [Sharding::State, Sharding::Full] {
        let mut fused = FusedReplicas::new_ok(Network::init(device), adamw(), flex(2))
            .with_config_ok(FusedConfig::sharded(sharding));
        fused.step_ok(RATE, batches.clone(), Network::loss);
        let whole = fused.model();
        fused.change_model_ok(|mut model| {
            model.layers.pop();
            model
        });
        fused.step_ok(RATE, batches.clone(), Network::loss);
        assert_eq!(fused.load_record(fused.to_record()), Ok(()));
        fused.change_model_ok(|_| whole);
        fused.step_ok(RATE, batches.clone(), Network::loss);
        assert_eq!(fused.load_record(fused.to_record()), Ok(()));
    }
}

/// Each goes on from the checkpoint of the one before.
#[test]
fn a_checkpoint_goes_on_with_any_number_of_devices() {
    let (_alone, device, initial) = begin();
    let half = |model: &Network, batch| model.loss(batch) / 2.0;
    let clipped = || {
        let clipping = GlobalNormClippingConfig::Lagged(0.5);
        FusedConfig::clipping(clipping)
    };
    let batches = tokens(device, &[2, 4, 3, 2, 4, 2]);
    let expected = {
        let mut fused = replicas(&initial, &flex(2), clipped());
        for batch in &batches {
            fused.step_ok(RATE, vec![batch.clone(); 2], half);
        }
        fused.model()
    };

    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let model = copy(&initial, || Network::init(device));
    let first = FusedOptimizer::new_ok(model, adamw()).with_config_ok(clipped());
    checkpoint.save(&first, &Progress::new(0)).unwrap();
    let waiting = offloaded(Offload::Updates).offload;
    let ways = [
        Some(clipped().with_sharding(Sharding::Full)),
        None,
        Some(clipped()),
        Some(clipped().with_offload(waiting)),
        None,
        Some(
            clipped()
                .with_sharding(Sharding::Full)
                .with_ownership(Ownership::BySize),
        ),
    ];
    for (way, batch) in ways.into_iter().zip(&batches) {
        let model = Network::init(device);
        let step = match way {
            Some(config) => {
                let mut fused =
                    FusedReplicas::new_ok(model, adamw(), flex(2)).with_config_ok(config);
                let step = checkpoint.load::<()>(&mut fused).unwrap().step;
                fused.step_ok(RATE, vec![batch.clone(); 2], half);
                checkpoint.save(&fused, &Progress::new(step + 1)).unwrap();
                step
            }
            None => {
                let mut fused = FusedOptimizer::new_ok(model, adamw()).with_config_ok(clipped());
                let step = checkpoint.load::<()>(&mut fused).unwrap().step;
                fused.accumulate_ok(|model| half(model, batch.clone()));
                fused.step_ok(RATE, |model| half(model, batch.clone()));
                checkpoint.save(&fused, &Progress::new(step + 1)).unwrap();
                step
            }
        };
        assert_eq!(&batches[step as usize].to_data(), &batch.to_data());
    }
    let mut resumed = FusedOptimizer::new_ok(Network::init(device), adamw());
    assert_eq!(checkpoint.load::<()>(&mut resumed).unwrap().step, 6);
    assert_near_weights(&expected, &resumed.model(), 1e-5, 0.0);
}

#[test]
fn replicas_that_refuse_a_checkpoint_train_on() {
    let (_alone, device, initial) = begin();
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let wide = FusedReplicas::new_ok(Network::of_width(8, device), adamw(), flex(2));
    checkpoint.save(&wide, &Progress::new(1)).unwrap();
    let batches = tokens(device, &[2, 4]);
    let [expected, refused] = [false, true].map(|tries| {
        let mut fused = replicas(&initial, &flex(2), FusedConfig::sharded(Sharding::Full));
        for _ in 0..2 {
            if tries {
                let error = checkpoint.load::<()>(&mut fused).unwrap_err();
                assert_says(&error, "embedding.weight");
            }
            fused.step_ok(RATE, batches.clone(), Network::loss);
        }
        fused.model()
    });
    assert_equal_weights(&expected, &refused);
}
