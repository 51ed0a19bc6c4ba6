//! Replicas have the same weights as a training with Burn alone.

use std::time::Duration;

use super::*;

mod statistics;

fn copied(initial: &Network, device: &Device) -> Network {
    copy(initial, || Network::init(device))
}

/// Steps of one batch for each of `ranks`, in which some ranks use all layers and others do not.
fn steps(device: &Device, ranks: usize, steps: usize) -> Vec<Vec<Tensor<2, Int>>> {
    let rows = |step| {
        (0..ranks)
            .map(|rank| 2 + (step + rank) % 3)
            .collect::<Vec<_>>()
    };
    (0..steps).map(|step| tokens(device, &rows(step))).collect()
}

fn train(fused: &mut FusedReplicas<Network>, steps: &[Vec<Tensor<2, Int>>]) {
    for batches in steps {
        let losses = fused.step_ok(RATE, batches.clone(), Network::loss);
        assert_eq!(losses.len(), batches.len());
    }
}

#[test]
fn replicas_equal_stock_on_several_devices() {
    let _alone = alone();
    for ranks in 1..=4 {
        let devices = flex(ranks);
        let initial = Network::init(&devices[0]);
        let steps = steps(&devices[0], ranks, 4);
        let by_id = (Stock::Sharded, Ownership::ByParamId);
        let on_main = (Stock::Main, Ownership::MainDevice);
        // The sum of two has no order.
        let alike = [
            (Stock::Sharded, Ownership::BySize),
            (Stock::Sharded, Ownership::MainDevice),
            (Stock::Main, Ownership::ByParamId),
            (Stock::Main, Ownership::BySize),
        ];
        let alike = alike.into_iter().filter(|_| ranks == 2);
        for (stock, ownership) in [by_id, on_main].into_iter().chain(alike) {
            let expected = train_stock(copied(&initial, &devices[0]), &devices, &steps, stock);
            for sharding in [Sharding::State, Sharding::Full] {
                let mut fused = replicas(
                    &initial,
                    &devices,
                    FusedConfig::sharded(sharding).with_ownership(ownership),
                );
                train(&mut fused, &steps);
                assert_equal_weights(&expected, &fused.model());
                assert_eq!(fused.last_step().copied, Some(0), "{ranks} {sharding:?}");
            }
        }
    }
}

#[test]
fn one_replica_equals_a_fused_optimizer() {
    let (_alone, _, initial) = begin();
    let devices = flex(1);
    let steps = steps(&devices[0], 1, 5);
    let mut alone = FusedOptimizer::new_ok(copied(&initial, &devices[0]), adamw());
    let mut fused = FusedReplicas::new_ok(copied(&initial, &devices[0]), adamw(), devices.clone());
    for batches in &steps {
        let expected = alone.step_ok(RATE, |model| model.loss(batches[0].clone()));
        let losses = fused.step_ok(RATE, batches.clone(), Network::loss);
        assert_eq!(losses[0].to_data(), expected.to_data());
        assert_eq!(fused.last_step(), alone.last_step());
    }
    assert_equal_weights(&alone.model(), &fused.model());
}

#[test]
fn a_batch_split_over_ranks_equals_the_whole() {
    let (_alone, _, initial) = begin();
    let devices = flex(4);
    let whole = tokens(&devices[0], &[8, 8, 8]);
    let mut alone = FusedOptimizer::new_ok(copied(&initial, &devices[0]), adamw());
    let mut fused = FusedReplicas::new_ok(copied(&initial, &devices[0]), adamw(), devices.clone());
    for batch in whole {
        alone.step_ok(RATE, |model| model.loss(batch.clone()));
        let parts = batch.chunk(4, 0);
        fused.step_ok(RATE, parts, |model: &Network, part| model.loss(part) / 4.0);
    }
    assert_near_weights(&alone.model(), &fused.model(), 1e-5, 0.0);
}

/// The tied embedding as the head of a loss in chunks, after layers in blocks.
fn loss_in_chunks(model: &Network, tokens: Tensor<2, Int>) -> Tensor<1> {
    let targets = tokens.clone().flatten(0, 1);
    let hidden = model.embedding.forward(tokens).flatten(0, 1);
    let run = |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh();
    let layers = model.layers.iter();
    let hidden = layers.fold(hidden, |x, layer| gradient_checkpointing(layer, x, run));
    let loss = LinearCrossEntropyLossConfig::new().with_chunk_size(2);
    loss.init().forward(&model.embedding, hidden, targets)
}

#[test]
fn a_loss_in_chunks_over_ranks_equals_that_of_the_whole_batch() {
    let (_alone, _, initial) = begin();
    let devices = flex(3);
    let whole = tokens(&devices[0], &[6, 6, 6]);
    let clipping = GlobalNormClippingConfig::Exact(0.3);
    let mut alone = FusedOptimizer::new_ok(copied(&initial, &devices[0]), adamw())
        .with_config_ok(FusedConfig::clipping(clipping));
    for batch in &whole {
        alone.step_repeatable_ok(RATE, |model| loss_in_chunks(model, batch.clone()));
    }
    let expected = alone.model();
    for sharding in [Sharding::State, Sharding::Full] {
        let mut fused = replicas(
            &initial,
            &devices,
            FusedConfig::sharded(sharding).with_clipping(Some(clipping)),
        );
        for batch in &whole {
            let parts = batch.clone().chunk(3, 0);
            fused.step_repeatable_ok(RATE, parts, move |model, part| {
                loss_in_chunks(model, part) / 3.0
            });
        }
        assert_near_weights(&expected, &fused.model(), 1e-5, 0.0);
        assert_changed(&initial, &fused.model(), |path| {
            path.starts_with("embedding") || path.starts_with("layers")
        });
    }
}

#[test]
fn ranks_without_a_batch_stand_by_as_in_stock() {
    let (_alone, _, initial) = begin();
    let devices = flex(3);
    let mut uneven = steps(&devices[0], 3, 4);
    uneven[1].truncate(2);
    uneven[3].truncate(1);
    let model = copied(&initial, &devices[0]);
    let expected = train_stock(model, &devices, &uneven, Stock::Sharded);
    for sharding in [Sharding::State, Sharding::Full] {
        let mut fused = replicas(&initial, &devices, FusedConfig::sharded(sharding));
        train(&mut fused, &uneven);
        assert_equal_weights(&expected, &fused.model());
    }
}

/// The layers in the order of the batch's first number, so that ranks can compute their gradients in opposed orders.
fn loss_in_order(model: &Network, (x, backwards): (Tensor<2>, bool)) -> Tensor<1> {
    let mut layers: Vec<_> = model.layers.iter().collect();
    if backwards {
        layers.reverse();
    }
    let run = |x, layer: &&Linear| layer.forward(x).tanh();
    layers.iter().fold(x, run).mean()
}

#[test]
fn opposed_orders_of_parameters_come_through() {
    let _alone = alone();
    let devices = flex(2);
    for limit in [0, 144, 720] {
        let model = Network::init(&devices[0]);
        let (sender, done) = std::sync::mpsc::channel();
        let devices = devices.clone();
        std::thread::spawn(move || {
            let mut fused = FusedReplicas::new_ok(model, adamw(), devices.clone())
                .with_config_ok(FusedConfig::new().with_max_bytes_in_flight(Some(limit)));
            for step in 0..20 {
                let x = Tensor::ones([2, 6], &devices[0]);
                let batches = [(x.clone(), step % 2 == 0), (x, step % 2 == 1)];
                fused.step_ok(RATE, batches, loss_in_order);
            }
            sender.send(()).unwrap();
        });
        let in_time = done.recv_timeout(Duration::from_secs(60));
        assert!(
            in_time.is_ok(),
            "opposed orders with {limit} bytes under way block each other"
        );
    }
}

/// A batch, and which of the ways it goes.
type Way = (Tensor<2>, bool, bool);

/// There is nothing in the step itself that says so: what it uses was accumulated before.
#[test]
fn a_base_stepped_with_what_was_accumulated_is_the_same_on_every_rank() {
    let _alone = alone();
    let devices = flex(3);
    let adapted = || {
        let model = Network::init(&devices[0]);
        model.apply_lora(Lora::new(2, 4.0)).unfreeze()
    };
    let initial = adapted();
    let batches = tokens(&devices[0], &[2, 4, 2]);
    let same = tokens(&devices[0], &[2]).remove(0);
    // The first reaches no base.
    let beside = |model: &Network, _: Tensor<2, Int>| model.scale.val().mean();
    for reaches_nothing in [true, false] {
        let mut model = copy(&initial, adapted);
        let mut sum = burn::optim::GradientsAccumulator::new();
        let mut add = |loss: Tensor<1>| {
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            sum.accumulate(&model, gradients);
        };
        batches
            .iter()
            .for_each(|batch| add(model.loss(batch.clone())));
        if reaches_nothing {
            batches
                .iter()
                .for_each(|batch| add(beside(&model, batch.clone())));
        }
        model = adamw().step(RATE, model, sum.grads());

        let mut fused = FusedReplicas::new_ok(copy(&initial, adapted), adamw(), devices.clone())
            .with_config_ok(FusedConfig::new().with_ownership(Ownership::MainDevice));
        fused.accumulate_ok(batches.clone(), Network::loss);
        match reaches_nothing {
            true => drop(fused.step_ok(RATE, batches.clone(), beside)),
            false => fused.step_accumulated_ok(RATE),
        }
        assert_equal_weights(&model, &fused.model());
        let losses = fused.accumulate_ok(vec![same.clone(); 3], Network::loss);
        let expected = model.loss(same.clone()).into_data();
        for loss in losses {
            assert_eq!(loss.into_data(), expected, "{reaches_nothing}");
        }
    }
}

#[test]
fn every_rank_goes_on_with_the_same_weights() {
    let _alone = alone();
    let devices = flex(3);
    let mut fused = FusedReplicas::new_ok(Network::init(&devices[0]), adamw(), devices.clone());
    train(&mut fused, &steps(&devices[0], 3, 3));
    let same = tokens(&devices[0], &[2]).remove(0);
    let losses = fused.accumulate_ok(vec![same; 3], Network::loss);
    assert_eq!(losses[0].to_data(), losses[1].to_data());
    assert_eq!(losses[0].to_data(), losses[2].to_data());
}
