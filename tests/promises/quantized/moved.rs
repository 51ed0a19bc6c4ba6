//! Quantized values are on a host, and devices share them.

use super::*;

/// Quantized values may be on a device that can't compute in their type.
#[test]
fn quantized_values_on_any_host_survive_changes_of_training() {
    let of_burn = QLora::new(lora(), quantizer(QuantValue::Q8S));
    let of_burn = dense().apply_qlora(of_burn);
    for initial in [quantized(BaseFormat::Bits4), of_burn] {
        for device in cpus() {
            let x = Tensor::<2>::ones([4, 16], &device);
            let device = device.inner();
            let is_quantized = |model: &Stack| {
                let first = &model.layers[0].weight;
                first.reparameterization::<QuantizedAdapter>().is_some()
            };
            let train = |offload: Option<Offload>| {
                let offload = offload.map(|offload| offload_from(&device, offload));
                let config = FusedConfig::new().with_offload(offload);
                let mut fused =
                    FusedOptimizer::new(initial.clone(), optim::AdamConfig::new().init())
                        .unwrap()
                        .with_config_on(config, &device)
                        .unwrap();
                let step = |fused: &mut FusedOptimizer<Stack>| {
                    fused
                        .step(RATE, |model| model.loss_in_blocks(x.clone()))
                        .unwrap();
                };
                step(&mut fused);
                fused.change_model(|model| model).unwrap();
                step(&mut fused);
                let valid = fused.valid();
                let loss = valid.loss(x.clone().inner()).into_scalar::<f32>();
                assert_eq!(is_quantized(&valid), is_quantized(&initial));
                let mut fused = fused.with_config_on(FusedConfig::new(), &device).unwrap();
                step(&mut fused);
                let fused = fused
                    .with_config_on(FusedConfig::new(), &Device::flex())
                    .unwrap();
                (fused.model(), loss)
            };
            let (expected, loss) = train(None);
            for offload in OFFLOADS {
                let (found, loss_too) = train(Some(offload));
                assert_equal_factors(&expected, &found);
                // Other formats and devices dequantize in another order.
                let is_exact = is_quantized(&initial) && device == Device::flex();
                let tolerance = if is_exact { 0.0 } else { 1e-6 };
                let near = (loss - loss_too).abs() <= tolerance;
                assert!(near, "{offload:?}: {loss} and {loss_too}");
            }
        }
    }
}
