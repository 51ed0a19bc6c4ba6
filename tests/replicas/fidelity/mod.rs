//! Replicas have the same weights as stock training.

use std::collections::HashSet;
use std::sync::Arc;

use super::*;

mod statistics;

/// Returns steps with at most one batch for each of `ranks`. Some ranks use all layers, others only some, and some have
/// no batch.
fn steps(device: &Device, ranks: usize) -> Vec<Batches> {
    let step = |(step, silent)| {
        let rows = (0..ranks - silent).map(|rank| 2 + (step + rank) % 3);
        tokens(device, &rows.collect::<Vec<_>>())
    };
    let silent = [0, usize::from(ranks > 1), 0, ranks - 1];
    silent.into_iter().enumerate().map(step).collect()
}

type Step = fn(&mut FusedReplicas<Network>, Batches);

/// The ways to make a step.
const WAYS: [(&str, Step); 3] = [
    ("step", |fused, batches| {
        let ranks = batches.len();
        assert_eq!(
            fused.step(RATE, batches, Network::loss).unwrap().len(),
            ranks
        );
        assert_eq!(fused.last_step().copied, Some(0));
    }),
    ("step_with_backward", |fused, batches| {
        let train = |model: &Network, batch| {
            let gradients = model.loss(batch).backward();
            ((), GradientsParams::from_grads(gradients, model))
        };
        fused.step_with_backward(RATE, batches, train).unwrap();
    }),
    ("step_accumulated", |fused, batches| {
        fused.accumulate(batches, Network::loss).unwrap();
        fused.step_accumulated(RATE).unwrap();
        let error = fused.step_accumulated(RATE);
        assert_eq!(error, Err(FusedError::NothingAccumulated));
    }),
];

#[test]
fn replicas_on_several_devices_equal_stock() {
    let _alone = alone();
    for ranks in 1..=4 {
        let devices = flex(ranks);
        let initial = Network::init(&devices[0]);
        let steps = steps(&devices[0], ranks);
        let by_id = (Stock::Sharded, Ownership::ByParamId);
        let on_main = (Stock::Main, Ownership::MainDevice);
        // A sum of two terms has no order.
        let alike = [
            (Stock::Sharded, Ownership::BySize),
            (Stock::Sharded, Ownership::MainDevice),
            (Stock::Main, Ownership::ByParamId),
            (Stock::Main, Ownership::BySize),
        ];
        let alike = alike.into_iter().filter(|_| ranks == 2);
        for (stock, ownership) in [by_id, on_main].into_iter().chain(alike) {
            let model = copy(&initial, || Network::init(&devices[0]));
            let expected = train_stock(model, &devices, &steps, stock);
            for (sharding, (way, step)) in product(SHARDINGS, WAYS) {
                println!("{ranks} ranks, {ownership:?}, {sharding:?}, {way}");
                let config = FusedConfig::sharded(sharding).with_ownership(ownership);
                let mut fused = replicas(&initial, &devices, config);
                steps.iter().for_each(|it| step(&mut fused, it.clone()));
                assert_equal_weights(&expected, &fused.model());
                assert_ranks_agree(&mut fused);
            }
        }
    }
}

#[test]
fn single_replica_equals_fused_optimizer() {
    let (_alone, device, initial) = begin();
    let model = copy(&initial, || Network::init(device));
    let mut alone = FusedOptimizer::new(model, adamw()).unwrap();
    let mut fused = replicas(&initial, &flex(1), FusedConfig::new());
    for batches in steps(device, 1) {
        let expected = alone
            .step(RATE, |model| model.loss(batches[0].clone()))
            .unwrap();
        let losses = fused.step(RATE, batches, Network::loss).unwrap();
        assert_eq!(losses[0].to_data(), expected.to_data());
        assert_eq!(fused.last_step(), alone.last_step());
    }
    assert_equal_weights(&alone.model(), &fused.model());
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
fn batch_split_over_ranks_equals_whole() {
    let (_alone, device, initial) = begin();
    let whole = tokens(device, &[6, 6, 6]);
    let clipping = Some(GlobalNormClippingConfig::Exact(0.3));
    type Loss = fn(&Network, Tensor<2, Int>) -> Tensor<1>;
    for (loss, all) in [(Network::loss as Loss, true), (loss_in_chunks, false)] {
        let model = copy(&initial, || Network::init(device));
        let mut alone = FusedOptimizer::new(model, adamw())
            .unwrap()
            .with_config(FusedConfig::new().with_clipping(clipping))
            .unwrap();
        for batch in &whole {
            alone
                .step_repeatable(RATE, |model| loss(model, batch.clone()))
                .unwrap();
        }
        for sharding in SHARDINGS {
            let config = FusedConfig::sharded(sharding).with_clipping(clipping);
            let mut fused = replicas(&initial, &flex(3), config);
            for batch in &whole {
                let parts = batch.clone().chunk(3, 0);
                fused
                    .step_repeatable(RATE, parts, move |model, part| loss(model, part) / 3.0)
                    .unwrap();
            }
            assert_near_weights(&alone.model(), &fused.model(), 1e-5, 0.0);
            assert_changed(&initial, &fused.model(), |path| {
                all || path.starts_with("embedding") || path.starts_with("layers")
            });
        }
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
fn ranks_with_opposed_orders_equal_stock_with_any_limit() {
    let (_alone, device, initial) = begin();
    let x = Tensor::ones([2, 6], device);
    let steps = [0, 1].repeat(10).into_iter();
    let steps = steps.map(|step| [(x.clone(), step == 0), (x.clone(), step == 1)]);
    let loss = |model: &Network, batch: &(_, _)| loss_in_order(model, batch.clone());
    let mut optimizer = adamw();
    let start = copy(&initial, || Network::init(device));
    let stock = steps.clone().fold(start, |model, batches| {
        step_stock(model, &mut optimizer, RATE, &batches, loss)
    });
    for limit in [0, 144, 720, usize::MAX] {
        let config = FusedConfig::new().with_max_bytes_in_flight(Some(limit));
        let mut fused = replicas(&initial, &flex(2), config);
        let steps: Vec<_> = steps.clone().collect();
        let fused = in_time(move || {
            for batches in steps {
                fused.step(RATE, batches, loss_in_order).unwrap();
            }
            fused.model()
        });
        assert_equal_weights(&stock, &fused);
    }
}

/// The step itself has no gradient of the base: it applies earlier gradients.
#[test]
fn lora_base_stepped_with_accumulated_sum_equals_stock() {
    let (_alone, device, _) = begin();
    let adapted = || {
        let model = Network::init(device);
        model.apply_lora(Lora::new(2, 4.0)).unfreeze()
    };
    let initial = adapted();
    let batches = tokens(device, &[2, 4, 2]);
    // The loss of the step does not reach the base, or there is no loss.
    let beside = |model: &Network, _: Tensor<2, Int>| model.scale.val().mean();
    for reaches_nothing in [true, false] {
        let model = copy(&initial, adapted);
        let mut sum = GradientsAccumulator::new();
        let losses = batches.iter().map(|batch| model.loss(batch.clone()));
        let besides = batches.iter().filter(|_| reaches_nothing);
        let besides = besides.map(|batch| beside(&model, batch.clone()));
        for loss in losses.chain(besides) {
            sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        }
        let expected = adamw().step(RATE, model, sum.grads());

        let mut fused = FusedReplicas::new(copy(&initial, adapted), adamw(), flex(3))
            .unwrap()
            .with_config(FusedConfig::new().with_ownership(Ownership::MainDevice))
            .unwrap();
        fused.accumulate(batches.clone(), Network::loss).unwrap();
        match reaches_nothing {
            true => drop(fused.step(RATE, batches.clone(), beside).unwrap()),
            false => fused.step_accumulated(RATE).unwrap(),
        }
        assert_equal_weights(&expected, &fused.model());
        assert_ranks_agree(&mut fused);
    }
}

/// Gradients are buffered until all ranks apply or skip the step.
#[test]
fn overflow_on_one_rank_skips_step_on_all() {
    let (_alone, device, initial) = begin();
    let scaling = LossScalingConfig::new().with_initial_scale(1024.0);
    let overflows = [Overflow::SkipStep, Overflow::SkipParameter];
    for (sharding, overflow) in product(SHARDINGS, overflows) {
        let scaling = Some(scaling.with_overflow(overflow));
        let config = FusedConfig::sharded(sharding).with_loss_scaling(scaling);
        let mut fused = replicas(&initial, &flex(3), config);
        let mut scale = 1024.0;
        for failing in 0..3 {
            let mut step = |factor: f32| {
                let factors = (0..3).map(|rank| if rank == failing { factor } else { 1.0 });
                let batches = tokens(device, &[2, 4, 2]).into_iter().zip(factors);
                fused
                    .step_repeatable(RATE, batches, |model: &Network, (tokens, factor)| {
                        model.loss_in_blocks(tokens) * factor
                    })
                    .unwrap();
                let report = fused.last_step();
                assert_eq!(report.overflowed, factor.is_infinite());
                assert_eq!(report.loss_scale, Some(scale), "{sharding:?}, {overflow:?}");
                fused.model()
            };
            let (before, after) = (step(1.0), step(f32::INFINITY));
            assert_equal_weights(&before, &after);
            scale /= 2.0;
        }
        assert_ranks_agree(&mut fused);
    }
}

#[test]
fn hook_is_called_once_with_sum_of_ranks() {
    let (_alone, device, initial) = begin();
    for sharding in SHARDINGS {
        let paths: Arc<Mutex<Vec<String>>> = Arc::default();
        let called = paths.clone();
        let vetoes = hook(move |it| {
            called.lock().unwrap().push(it.path.into());
            match it.path {
                "scale" => Answer::Veto,
                _ => Answer::Use,
            }
        });
        let mut fused = replicas(&initial, &flex(3), FusedConfig::sharded(sharding))
            .with_hook(ParamGroup::all(), vetoes);
        fused
            .step(RATE, tokens(device, &[2, 3, 4]), Network::loss)
            .unwrap();
        let it = fused.last_step();
        assert_eq!((it.updated, it.vetoed, it.without_gradient), (11, 1, 0));
        let paths = paths.lock().unwrap();
        let different: HashSet<_> = paths.iter().collect();
        assert_eq!((paths.len(), different.len()), (12, 12), "{sharding:?}");
        assert_changed(&initial, &fused.model(), |path| path != "scale");
    }
}
