//! Muon needs whole matrices, and every matrix has one owner. So updates gather nothing, with any sharding and offload.

use backburn::optim::MuonWithAdamWConfig;
use burn::optim::{AdjustLrFn, MuonConfig};

use super::rows::table::offloaded;
use super::*;

fn recipe() -> MuonWithAdamWConfig {
    MuonWithAdamWConfig::new(vec!["embedding".into()])
}

fn by_hand() -> ModuleOptimizer {
    let matrices = ParamGroup::from_any_regexes(vec![r"^(layers\.\d|sometimes)\.weight$"]);
    let muon = MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW);
    adamw().with_group(matrices.unwrap(), muon.build(), None)
}

fn all_batches(device: &Device, ranks: usize) -> Vec<Batches> {
    let rows: Vec<_> = (0..ranks).map(|rank| 2 + rank % 3).collect();
    (0..3).map(|_| tokens(device, &rows)).collect()
}

/// Runs one stock step, with the update on the device of `model` and the gradients from `devices`.
fn step_there(
    model: Network,
    optimizer: &mut ModuleOptimizer,
    devices: &[Device],
    batches: Vec<Tensor<2, Int>>,
) -> Network {
    let there = model.devices()[0].clone();
    let gradients = devices.iter().zip(batches).map(|(device, batch)| {
        let replica = model.clone().fork(device);
        let gradients = replica.loss(batch).backward();
        let gradients = GradientsParams::from_grads(gradients, &replica);
        (gradients.to_device(&there, &replica), there.clone())
    });
    let grads = gradients.collect();
    optimizer.step_multi(RATE, model, MultiGradientsParams { grads })
}

/// Matrix products have other last bits on another backend, so an update on the host is compared with one on the host.
#[test]
fn muon_on_several_devices_equals_stock_with_any_owner() {
    let _alone = alone();
    let [_, host] = cpus();
    for ranks in 1..=4 {
        let devices = flex(ranks);
        let initial = Network::init(&devices[0]);
        let all_batches = all_batches(&devices[0], ranks);
        let stock = |there: &Device| {
            let mut optimizer = by_hand();
            let model = copy(&initial, || Network::init(there));
            all_batches.iter().fold(model, |model, batches| {
                step_there(model, &mut optimizer, &devices, batches.clone())
            })
        };
        let (on_device, on_host) = (stock(&devices[0]), stock(&host));
        for (config, expected) in [
            (FusedConfig::new(), &on_device),
            (offloaded(Offload::States), &on_device),
            (offloaded(Offload::Updates), &on_host),
            (offloaded(Offload::Weights(OffloadedBlocks::All)), &on_host),
        ] {
            for sharding in SHARDINGS {
                let config = config.clone().with_sharding(sharding);
                println!("{ranks}: {config}");
                let model = copy(&initial, || Network::init(&devices[0]));
                let fused = FusedReplicas::new(model, recipe().init(), devices.clone()).unwrap();
                let mut fused = fused.with_config(config).unwrap();
                for batches in &all_batches {
                    fused
                        .step(RATE, batches.clone(), Network::loss_in_blocks)
                        .unwrap();
                }
                assert_equal_weights(expected, &fused.model());
            }
        }
    }
}

/// The owner has the momentum and the low bits, and other ranks have neither.
#[test]
fn muon_in_formats_is_same_on_any_number_of_devices() {
    let _alone = alone();
    const WIDTH: usize = 66;
    let optimizer = || {
        recipe()
            .with_state_format(StateFormat::Bits8)
            .with_weight_format(WeightFormat::Split24)
            .init()
    };
    let init = || cast(Network::of_width(WIDTH, &flex(1)[0]), FloatDType::BF16).unwrap();
    let initial = init();
    let all_batches = all_batches(&flex(1)[0], 1);
    let train = |ranks, sharding| {
        let config = FusedConfig::sharded(sharding).with_ownership(Ownership::BySize);
        let model = copy(&initial, init);
        let fused = FusedReplicas::new(model, optimizer(), flex(ranks)).unwrap();
        let mut fused = fused.with_config(config).unwrap();
        for batches in &all_batches {
            // The other ranks have no batch, because sums in bf16 would be rounded.
            fused
                .step(RATE, batches.clone(), Network::loss_in_blocks)
                .unwrap();
        }
        // With the low bits from its record.
        let mut one = FusedOptimizer::new(fused.model(), optimizer()).unwrap();
        one.load_record(fused.to_record()).unwrap();
        one.full_precision_model()
    };
    let expected = train(1, Sharding::State);
    for ranks in 2..=4 {
        for sharding in SHARDINGS {
            assert_equal_weights(&expected, &train(ranks, sharding));
        }
    }
}
