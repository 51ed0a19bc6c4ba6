//! Replicas on devices of several kinds.

use backburn::{FusedReplicas, GlobalNormClippingConfig, LossScalingConfig, Sharding};

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

/// The same batches on the device of each rank.
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
            let model = copy(&initial, || Network::init(&devices[0]));
            let mut fused =
                FusedReplicas::new(model, adamw(), devices.clone()).with_sharding(sharding);
            for batches in &steps {
                fused.step(RATE, batches.clone(), move |model: &Network, batch| {
                    model.loss_of(batch, in_blocks)
                });
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
        let mut fused =
            FusedReplicas::new(model, adamw(), devices.clone()).with_sharding(Sharding::Full);
        for batches in &steps {
            fused.step(RATE, batches.clone(), Network::loss_in_blocks);
        }
        let (model, optimizer) = fused.into_parts();
        let lies_on: Vec<_> = model.devices().into_iter().map(Device::inner).collect();
        assert_eq!(lies_on, [devices[0].clone().inner()]);
        let mut again = FusedReplicas::new(model, optimizer, devices.clone());
        again.step(RATE, steps[0].clone(), Network::loss);
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
            let model = copy(&initial, || Network::init(&devices[0]));
            let mut fused = FusedReplicas::new(model, adamw(), devices.clone())
                .with_sharding(sharding)
                .with_clipping(GlobalNormClippingConfig::Exact(1e9))
                .with_loss_scaling(LossScalingConfig::new().with_initial_scale(256.0));
            for batches in &steps {
                fused.step_repeatable(RATE, batches.clone(), Network::loss_in_blocks);
                assert!(fused.last_step().gradient_norm.is_some_and(f64::is_finite));
            }
            assert_equal_weights(&expected, &fused.model());
        }
    }
}
