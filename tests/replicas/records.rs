//! Weights and states move between any numbers of devices, and to stock Burn and back.

use super::rows::table::offloaded;
use super::*;

/// The sum of two equal halves has the same bits in any order.
fn half(model: &Network, batch: Tensor<2, Int>) -> Tensor<1> {
    model.loss(batch) / 2.0
}

#[test]
fn optimizer_moves_between_stock_and_any_number_of_devices() {
    let (_alone, device, initial) = begin();
    let batches = tokens(device, &[2, 4, 3, 2]);
    let by_stock = |model: Network, mut optimizer: ModuleOptimizer, batch: &Tensor<2, Int>| {
        let loss = half(&model, batch.clone()) + half(&model, batch.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        (optimizer.step(RATE, model, gradients), optimizer)
    };
    let train = |ranks: [usize; 4]| {
        let mut model = copy(&initial, || Network::init(device));
        let mut optimizer = adamw();
        for (ranks, batch) in ranks.into_iter().zip(&batches) {
            (model, optimizer) = match ranks {
                0 => by_stock(model, optimizer, batch),
                _ => {
                    let mut fused = FusedReplicas::new(model, optimizer, flex(ranks))
                        .unwrap()
                        .with_config(FusedConfig::sharded(SHARDINGS[ranks % 2]))
                        .unwrap();
                    fused.step(RATE, vec![batch.clone(); 2], half).unwrap();
                    fused.into_parts()
                }
            };
            // Through records, as after a restart.
            model = copy(&model, || Network::init(device));
            optimizer = adamw().load_record(optimizer.to_record());
        }
        model
    };
    assert_near_weights(&train([0; 4]), &train([2, 0, 3, 4]), 1e-5, 0.0);
}

/// Each training continues from the checkpoint of the previous one, with its averages and the norm of its last step.
#[test]
fn checkpoint_resumes_with_any_number_of_devices() {
    let (_alone, device, initial) = begin();
    let averaging = WeightAveragingConfig::new().with_decay(Some(0.5));
    let config = || FusedConfig::lagged(0.5).with_averaging(Some(averaging));
    let batches = tokens(device, &[2, 4, 3, 2, 4, 2]);
    let mut expected = replicas(&initial, &flex(2), config());
    for batch in &batches {
        expected.step(RATE, vec![batch.clone(); 2], half).unwrap();
    }

    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let one = || {
        FusedOptimizer::new(Network::init(device), adamw())
            .unwrap()
            .with_config(config())
            .unwrap()
    };
    let mut first = one();
    first
        .change_model(|_| copy(&initial, || Network::init(device)))
        .unwrap();
    checkpoint.save(&first, &Progress::new(0)).unwrap();
    let in_full = config().with_sharding(Sharding::Full);
    let ways = [
        (2, in_full.clone()),
        (1, config()),
        (3, config()),
        (
            2,
            config().with_offload(offloaded(Offload::Updates).offload),
        ),
        (1, config()),
        (4, in_full.with_ownership(Ownership::BySize)),
    ];
    for (index, ((ranks, config), batch)) in ways.into_iter().zip(&batches).enumerate() {
        let progress = Progress::new(index as u64 + 1);
        let step = match ranks {
            1 => {
                let mut fused = one();
                let step = checkpoint.load::<()>(&mut fused).unwrap().step;
                fused
                    .accumulate(|model| half(model, batch.clone()))
                    .unwrap();
                fused
                    .step(RATE, |model| half(model, batch.clone()))
                    .unwrap();
                checkpoint.save(&fused, &progress).unwrap();
                step
            }
            _ => {
                let mut fused = replicas(&Network::init(device), &flex(ranks), config);
                let step = checkpoint.load::<()>(&mut fused).unwrap().step;
                fused.step(RATE, vec![batch.clone(); 2], half).unwrap();
                checkpoint.save(&fused, &progress).unwrap();
                step
            }
        };
        assert_eq!(step, index as u64);
    }
    let mut resumed = one();
    assert_eq!(checkpoint.load::<()>(&mut resumed).unwrap().step, 6);
    assert_near_weights(&expected.model(), &resumed.model(), 1e-5, 0.0);
    assert_near_weights(&expected.averaged(), &resumed.averaged(), 1e-5, 0.0);
    assert_changed(&resumed.model(), &resumed.averaged(), |_| true);
}

#[test]
fn replicas_made_again_with_other_config_equal_stock() {
    let (_alone, device, initial) = begin();
    let devices = flex(2);
    let steps: Vec<_> = (0..8).map(|_| tokens(device, &[2, 3])).collect();
    let model = copy(&initial, || Network::init(device));
    let expected = train_stock(model, &devices, &steps, Stock::Sharded);
    let mut fused = replicas(&initial, &devices, FusedConfig::new());
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
    for (batches, change) in steps.into_iter().zip(changes) {
        fused.step(RATE, batches, Network::loss).unwrap();
        let config = change(fused.config().clone());
        fused = fused.with_config(config).unwrap();
    }
    assert_equal_weights(&expected, &fused.model());
}

#[test]
fn owner_of_parameter_follows_option() {
    let (_alone, _, initial) = begin();
    let owned = |ownership| {
        let config = FusedConfig::new().with_ownership(ownership);
        replicas(&initial, &flex(3), config)
    };
    let fused = owned(Ownership::BySize);
    // The embedding has 54 elements, each of five weights 36.
    let embedding = fused.owner("embedding.weight").unwrap();
    for layer in ["layers.0.weight", "layers.1.weight"] {
        assert_ne!(fused.owner(layer).unwrap(), embedding);
    }
    assert_eq!(fused.owner("layers.9.weight"), None);
    let fused = owned(Ownership::MainDevice);
    assert_eq!(fused.owner("layers.3.bias"), Some(0));
    // A trained LoRA base is an ordinary leaf, but an owner still updates it.
    let model = initial.apply_lora(Lora::new(2, 4.0));
    for (model, owner) in [(model.clone(), None), (model.unfreeze(), Some(0))] {
        let config = FusedConfig::new().with_ownership(Ownership::MainDevice);
        let fused = FusedReplicas::new_with_config(model, adamw(), flex(2), config);
        assert_eq!(fused.unwrap().owner("layers.0.weight"), owner);
    }
}

#[test]
fn bad_input_of_replicas_is_an_error_with_reason() {
    let (_alone, device, initial) = begin();
    let none = FusedReplicas::new(Network::init(device), adamw(), []);
    assert_says(&none.unwrap_err(), "list of devices is empty");
    let mut fused = replicas(&initial, &flex(2), FusedConfig::new());
    for rows in [&[] as &[usize], &[2, 2, 2]] {
        let error = fused.step(RATE, tokens(device, rows), Network::loss);
        let says = format!("{} batches for 2 ranks", rows.len());
        assert_says(&error.unwrap_err(), &says);
    }
    let mut clipping = fused.with_config(FusedConfig::exact(1.0)).unwrap();
    let error = clipping.step(RATE, tokens(device, &[2, 2]), Network::loss);
    assert_matches!(error, Err(FusedError::RunsTwice));
    let muon = backburn::optim::MuonConfig::new().init();
    let error = FusedReplicas::new(Network::init(device), muon, flex(2));
    assert_says(&error.unwrap_err(), "`layers.0.bias`");
}

#[test]
fn removed_layer_leaves_record_of_replicas_and_equals_stock() {
    let (_alone, device, initial) = begin();
    let batches = tokens(device, &[2, 4]);
    let mut optimizer = adamw();
    let mut step = |model| {
        let batches = batches.clone();
        stock_step(None, model, &mut optimizer, &flex(2), batches, Stock::Main)
    };
    let without_last = |mut model: Network| {
        model.layers.pop();
        model
    };
    let whole = step(copy(&initial, || Network::init(device)));
    let expected = [step(without_last(whole.clone())), {
        // Without a state.
        let mut whole = whole;
        let last = whole.layers.last_mut().unwrap();
        last.weight = Param::initialized(ParamId::new(), last.weight.val());
        let bias = last.bias.take().unwrap().val();
        last.bias = Some(Param::initialized(ParamId::new(), bias));
        step(whole)
    }];
    for sharding in SHARDINGS {
        let mut fused = replicas(&initial, &flex(2), FusedConfig::sharded(sharding));
        fused.step(RATE, batches.clone(), Network::loss).unwrap();
        let whole = fused.model();
        let models = [without_last(whole.clone()), whole];
        for (model, expected) in models.into_iter().zip(&expected) {
            fused.change_model(|_| model).unwrap();
            fused.step(RATE, batches.clone(), Network::loss).unwrap();
            assert_equal_weights(expected, &fused.model());
            assert_eq!(fused.load_record(fused.to_record()), Ok(()));
        }
    }
}

#[test]
fn replicas_that_refuse_checkpoint_train_on() {
    let (_alone, device, initial) = begin();
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let wide = FusedReplicas::new(Network::of_width(8, device), adamw(), flex(2)).unwrap();
    checkpoint.save(&wide, &Progress::new(1)).unwrap();
    let batches = tokens(device, &[2, 4]);
    let [expected, refused] = [false, true].map(|tries| {
        let mut fused = replicas(&initial, &flex(2), FusedConfig::sharded(Sharding::Full));
        for _ in 0..2 {
            if tries {
                let error = checkpoint.load::<()>(&mut fused).unwrap_err();
                assert_says(&error, "embedding.weight");
            }
            fused.step(RATE, batches.clone(), Network::loss).unwrap();
        }
        fused.model()
    });
    assert_equal_weights(&expected, &refused);
}
