//! Replicas on devices of several kinds.

use burn::tensor::GradientCheckpointingStrategy;

use super::*;

/// Returns devices of different kinds. Those of wgpu are one adapter under two names, which Burn treats as two devices.
#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn mixtures() -> Vec<Vec<Device>> {
    #[cfg(not(feature = "wgpu"))]
    let mixtures = {
        let (flex, ndarray) = (Device::flex(), Device::ndarray());
        [
            vec![flex.clone(), ndarray.clone()],
            vec![ndarray, flex.clone(), flex],
        ]
    };
    #[cfg(feature = "wgpu")]
    let mixtures = {
        use burn::tensor::DeviceKind::{Cpu, DefaultDevice};
        let [default, cpu] = [DefaultDevice, Cpu].map(Device::wgpu);
        [
            vec![default.clone(), cpu.clone()],
            vec![default.clone(), default],
            vec![Device::flex(), cpu],
        ]
    };
    let with_autodiff = |devices: Vec<Device>| devices.into_iter().map(Device::autodiff).collect();
    mixtures.into_iter().map(with_autodiff).collect()
}

/// Returns the same batches on the device of each rank.
fn dealt(devices: &[Device], steps: usize) -> Vec<Batches> {
    let step = |_| {
        let batches = tokens(&flex(1)[0], &[2, 4, 3][..devices.len()]);
        let ranks = batches.into_iter().zip(devices);
        let there = ranks.map(|(batch, device)| batch.to_device(device));
        there.collect()
    };
    (0..steps).map(step).collect()
}

/// Policies that change nothing as long as gradients are finite and not too large.
fn with_policies(config: FusedConfig) -> FusedConfig {
    let scaling = LossScalingConfig::new().with_initial_scale(256.0);
    config
        .with_clipping(Some(GlobalNormClippingConfig::Exact(1e9)))
        .with_loss_scaling(Some(scaling))
}

#[test]
fn replicas_on_devices_of_several_kinds_equal_stock() {
    let _alone = alone();
    for devices in mixtures() {
        let initial = Network::init(&devices[0]);
        let steps = dealt(&devices, 3);
        let model = copy(&initial, || Network::init(&devices[0]));
        let expected = train_stock(model, &devices, &steps, Stock::Sharded).fork(&devices[0]);
        let plainly = |config: FusedConfig| config;
        type Choose = fn(FusedConfig) -> FusedConfig;
        type Loss = fn(&Network, Tensor<2, Int>) -> Tensor<1>;
        let chosen: [(Choose, Loss); 3] = [
            (plainly, Network::loss),
            (plainly, Network::loss_in_blocks),
            (with_policies, Network::loss_in_blocks),
        ];
        for (sharding, (choose, loss)) in product(SHARDINGS, chosen) {
            let config = choose(FusedConfig::sharded(sharding));
            println!("{devices:?}, {config}");
            let mut fused = replicas(&initial, &devices, config);
            for batches in &steps {
                fused.step_repeatable(RATE, batches.clone(), loss).unwrap();
                let norm = fused.last_step().gradient_norm.map(f64::is_finite);
                assert_eq!(norm, fused.config().clipping.map(|_| true));
            }
            assert_equal_weights(&expected, &fused.model());
        }
    }
}

/// A model that was created on another device. With all weights sharded, only owners receive a parameter.
#[test]
fn model_moves_to_devices_of_its_ranks() {
    let _alone = alone();
    for devices in mixtures() {
        let model = Network::init(&flex(1)[0]);
        let steps = dealt(&devices, 2);
        let mut fused = FusedReplicas::new(model, adamw(), devices.clone())
            .unwrap()
            .with_config(FusedConfig::sharded(Sharding::Full))
            .unwrap();
        for batches in &steps {
            fused
                .step(RATE, batches.clone(), Network::loss_in_blocks)
                .unwrap();
        }
        let (model, optimizer) = fused.into_parts();
        let found: Vec<_> = model.devices().into_iter().map(Device::inner).collect();
        assert_eq!(found, [devices[0].clone().inner()]);
        let mut again = FusedReplicas::new(model, optimizer, devices).unwrap();
        again.step(RATE, steps[0].clone(), Network::loss).unwrap();
    }
}

/// One parameter of each kind: trained, frozen, with an adapter, and a tensor that is not a parameter.
#[derive(Module, Debug)]
struct Assorted {
    adapted: Linear,
    frozen: Linear,
    norm: BatchNorm,
    layer: Linear,
}

impl Assorted {
    fn init(device: &Device) -> Self {
        let layer = || LinearConfig::new(4, 4).init(device);
        Self {
            adapted: layer().apply_lora(Lora::new(2, 4.0)).unfreeze(),
            frozen: layer().no_grad(),
            norm: BatchNormConfig::new(4).init(device),
            layer: layer(),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.adapted.forward(x).tanh();
        let x = self.frozen.forward(x).tanh();
        let x = self.norm.forward(self.layer.forward(x).exp());
        x.powi_scalar(3).mean()
    }
}

/// Lifts batches with the strategy of the learner. Burn refuses to compute with tensors of two strategies.
#[test]
fn ranks_take_checkpointing_strategy_of_model() {
    let _alone = alone();
    let device = &flex(1)[0];
    let initial = Assorted::init(device);
    let batch = || Tensor::<2>::random([6, 4], Distribution::Default, device);
    let steps: Vec<_> = (0..3).map(|_| [batch(), batch()]).collect();
    let train = |device: &Device, sharding| {
        let model = copy(&initial, || Assorted::init(device));
        // The strategies of the passed devices have no effect.
        let checkpointing = Device::flex().autodiff().gradient_checkpointing();
        let ranks = [Device::flex(), checkpointing];
        let mut fused = FusedReplicas::new(model, SgdConfig::new().init(), ranks)
            .unwrap()
            .with_config(FusedConfig::sharded(sharding))
            .unwrap();
        for batches in &steps {
            let batches = batches.iter().cloned().zip(fused.devices());
            let there = batches.map(|(x, place)| Tensor::from_data(x.into_data(), place));
            let there: Vec<_> = there.collect();
            let strategy = device.gradient_checkpointing_strategy();
            fused
                .step(RATE, there, move |model: &Assorted, x: Tensor<2>| {
                    for layer in [&model.adapted, &model.frozen, &model.layer] {
                        let weight = layer.weight.val();
                        assert_eq!(weight.gradient_checkpointing_strategy(), strategy);
                    }
                    let mean = model.norm.running_mean.value();
                    assert_eq!(mean.gradient_checkpointing_strategy(), strategy);
                    model.loss(x)
                })
                .unwrap();
        }
        // This also holds between steps.
        fused.change_model(|model| model).unwrap();
        fused.model()
    };
    let checkpointing = device.clone().gradient_checkpointing();
    for sharding in SHARDINGS {
        let (plain, recomputed) = (train(device, sharding), train(&checkpointing, sharding));
        assert_equal_weights(&plain, &recomputed);
        for layer in [recomputed.frozen, recomputed.layer] {
            let strategy = layer.weight.val().gradient_checkpointing_strategy();
            assert_eq!(strategy, Some(GradientCheckpointingStrategy::Balanced));
        }
    }
}
