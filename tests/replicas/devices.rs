//! Replicas on devices of several kinds.

use burn::tensor::GradientCheckpointingStrategy;

use super::*;

/// Ranks on devices that are not all the same; those of wgpu are one adapter under two names, which Burn takes for two
/// devices.
#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn mixtures() -> Vec<Vec<Device>> {
    #[cfg(feature = "wgpu")]
    use burn::tensor::DeviceKind;

    let (flex, ndarray) = (Device::flex(), Device::ndarray());
    #[allow(unused_mut)] // It is others with wgpu.
    let mut mixtures = vec![
        vec![flex.clone(), ndarray.clone()],
        vec![ndarray.clone(), flex.clone(), flex.clone()],
    ];
    #[cfg(feature = "wgpu")]
    {
        let default = Device::wgpu(DeviceKind::DefaultDevice);
        let cpu = Device::wgpu(DeviceKind::Cpu);
        mixtures = vec![
            vec![default.clone(), cpu.clone()],
            vec![default.clone(), default.clone()],
            vec![flex, cpu],
        ];
    }
    let with_autodiff = |devices: Vec<Device>| devices.into_iter().map(Device::autodiff).collect();
    mixtures.into_iter().map(with_autodiff).collect()
}

/// Returns the same batches on the device of each rank.
fn dealt(devices: &[Device], steps: usize) -> Vec<Vec<Tensor<2, Int>>> {
    let flex = Device::flex().autodiff();
    let step = |_| {
        let batches = tokens(&flex, &[2, 4, 3][..devices.len()]);
        let ranks = batches.into_iter().zip(devices);
        ranks
            .map(|(batch, device)| batch.to_device(device))
            .collect()
    };
    (0..steps).map(step).collect()
}

#[test]
fn replicas_equal_stock_on_devices_of_several_kinds() {
    let _alone = alone();
    for devices in mixtures() {
        let initial = Network::init(&devices[0]);
        let steps = dealt(&devices, 3);
        let model = copy(&initial, || Network::init(&devices[0]));
        let expected = train_stock(model, &devices, &steps, Stock::Sharded).fork(&devices[0]);
        for (sharding, in_blocks) in [
            (Sharding::State, false),
            (Sharding::State, true),
            (Sharding::Full, false),
            (Sharding::Full, true),
        ] {
            let mut fused = replicas(&initial, &devices, FusedConfig::sharded(sharding));
            for batches in &steps {
                fused.step_ok(
                    RATE,
                    batches.clone(),
                    move |model: &Network, batch| match in_blocks {
                        true => model.loss_in_blocks(batch),
                        false => model.loss(batch),
                    },
                );
            }
            assert_equal_weights(&expected, &fused.model());
        }
    }
}

/// A model that was made elsewhere: with all weights sharded none but the owners gets a parameter.
#[test]
fn a_model_comes_to_the_devices_of_its_ranks() {
    let _alone = alone();
    for devices in mixtures() {
        let flex = Device::flex().autodiff();
        let initial = Network::init(&flex);
        let steps = dealt(&devices, 2);
        let model = copy(&initial, || Network::init(&flex));
        let mut fused = FusedReplicas::new_ok(model, adamw(), devices.clone())
            .with_config_ok(FusedConfig::sharded(Sharding::Full));
        for batches in &steps {
            fused.step_ok(RATE, batches.clone(), Network::loss_in_blocks);
        }
        let (model, optimizer) = fused.into_parts();
        let lies_on: Vec<_> = model.devices().into_iter().map(Device::inner).collect();
        assert_eq!(lies_on, [devices[0].clone().inner()]);
        let mut again = FusedReplicas::new_ok(model, optimizer, devices.clone());
        again.step_ok(RATE, steps[0].clone(), Network::loss);
    }
}

#[test]
fn policies_hold_on_devices_of_several_kinds() {
    let _alone = alone();
    for devices in mixtures() {
        let initial = Network::init(&devices[0]);
        let steps = dealt(&devices, 3);
        let model = copy(&initial, || Network::init(&devices[0]));
        let expected = train_stock(model, &devices, &steps, Stock::Sharded).fork(&devices[0]);
        for sharding in [Sharding::State, Sharding::Full] {
            let mut fused = replicas(
                &initial,
                &devices,
                FusedConfig::sharded(sharding)
                    .with_clipping(Some(GlobalNormClippingConfig::Exact(1e9)))
                    .with_loss_scaling(Some(LossScalingConfig::new().with_initial_scale(256.0))),
            );
            for batches in &steps {
                fused.step_repeatable_ok(RATE, batches.clone(), Network::loss_in_blocks);
                assert!(fused.last_step().gradient_norm.is_some_and(f64::is_finite));
            }
            assert_equal_weights(&expected, &fused.model());
        }
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
fn ranks_take_over_the_checkpointing_strategy_of_the_model() {
    let _alone = alone();
    let device = Device::flex().autodiff();
    let initial = Assorted::init(&device);
    let batch = || Tensor::random([6, 4], Distribution::Default, &device);
    let steps: Vec<Vec<Tensor<2>>> = (0..3).map(|_| vec![batch(), batch()]).collect();
    let train = |device: &Device, sharding| {
        let model = copy(&initial, || Assorted::init(device));
        // Those of the devices that are named don't count.
        let ranks = [
            Device::flex(),
            Device::flex().autodiff().gradient_checkpointing(),
        ];
        let mut fused = FusedReplicas::new_ok(model, SgdConfig::new().init(), ranks)
            .with_config_ok(FusedConfig::sharded(sharding));
        for batches in &steps {
            let batches = batches.iter().cloned();
            let places = fused.devices().iter();
            let batches = batches.zip(places);
            let there: Vec<_> = batches
                .map(|(x, place)| Tensor::from_data(x.into_data(), place))
                .collect();
            let strategy = device.gradient_checkpointing_strategy();
            fused.step_ok(RATE, there, move |model: &Assorted, x: Tensor<2>| {
                for weight in [
                    &model.adapted.weight,
                    &model.frozen.weight,
                    &model.layer.weight,
                ] {
                    assert_eq!(weight.val().gradient_checkpointing_strategy(), strategy);
                }
                let mean = model.norm.running_mean.value();
                assert_eq!(mean.gradient_checkpointing_strategy(), strategy);
                model.loss(x)
            });
        }
        // Between steps, too.
        fused.change_model_ok(|model| model);
        fused.model()
    };
    let checkpointing = device.clone().gradient_checkpointing();
    for sharding in [Sharding::State, Sharding::Full] {
        let (plain, recomputed) = (train(&device, sharding), train(&checkpointing, sharding));
        assert_equal_weights(&plain, &recomputed);
        let strategy = |x: Tensor<2>| x.gradient_checkpointing_strategy();
        let balanced = Some(GradientCheckpointingStrategy::Balanced);
        assert_eq!(strategy(recomputed.frozen.weight.val()), balanced);
        assert_eq!(strategy(recomputed.layer.weight.val()), balanced);
    }
}
