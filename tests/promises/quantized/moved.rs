//! Codes wait on a host, and are shared by devices.

use super::*;

#[test]
fn codes_wait_on_the_host_and_come_over_wherever_they_are_read() {
    let initial = quantized(BaseFormat::Bits4);
    let xs = batches(4);
    let expected = stock(loras_of(&initial), &xs);
    let loss = |valid: &Stack| valid.loss(xs[0].clone().inner()).into_scalar::<f32>();
    let mut without = fused(twin(&initial), FusedConfig::new());
    train(&mut without, &xs, false);
    for config in waiting() {
        for in_blocks in [false, true] {
            let mut fused = fused(twin(&initial), config.clone());
            train(&mut fused, &xs, in_blocks);
            let valid = fused.valid();
            // In codes there, too.
            let adapter = valid.layers[0]
                .weight
                .reparameterization::<QuantizedAdapter>();
            assert!(adapter.is_some());
            assert_eq!(loss(&valid), loss(&without.valid()));
            assert_in_codes(&fused.model());
            assert_equal_factors(&expected, &fused.model());
        }
    }
}

/// Codes are kept where nothing is computed in their type.
#[test]
fn codes_go_to_any_host_and_back_when_the_training_changes() {
    #[allow(deprecated)] // Burn 0.22 still ships ndarray.
    let places = [
        (Device::flex(), OffloadHost::NdArray),
        (Device::ndarray(), OffloadHost::Flex),
    ];
    let of_burn = {
        let scheme = Device::flex().settings().quantization.scheme;
        let quantizer = Quantizer::new(Calibration::MinMax, scheme.with_value(QuantValue::Q8S));
        Stack::dense().apply_qlora(QLora::new(lora(), quantizer))
    };
    for initial in [quantized(BaseFormat::Bits4), of_burn] {
        for (device, host) in places.clone() {
            let x = Tensor::<2>::ones([4, 16], &device.clone().autodiff());
            let train = |offload: Option<Offload>| {
                let waits = |offload| {
                    OffloadConfig::new(offload)
                        .with_host(host)
                        .with_min_elements(1)
                };
                let config = FusedConfig::new().with_offload(offload.map(waits));
                let mut fused =
                    FusedOptimizer::new_ok(twin(&initial), optim::AdamConfig::new().init())
                        .with_config_on_ok(config, &device);
                let step = |fused: &mut FusedOptimizer<Stack>| {
                    fused.step_ok(RATE, |model| model.loss_in_blocks(x.clone()));
                };
                step(&mut fused);
                fused.change_model_ok(|model| model);
                step(&mut fused);
                let mut fused = fused.with_config_on_ok(FusedConfig::new(), &device);
                step(&mut fused);
                fused
                    .with_config_on_ok(FusedConfig::new(), &Device::flex())
                    .model()
            };
            let expected = train(None);
            for offload in [
                Offload::States,
                Offload::Updates,
                Offload::Weights(OffloadedBlocks::All),
            ] {
                assert_equal_factors(&expected, &train(Some(offload)));
            }
        }
    }
}
