//! A device whose default float type is changed before its first use.

use crate::common::*;

#[test]
fn tokens_of_loss_are_counted_in_type_that_can() {
    let alone = ("BACKBURN_TEST_TYPE", "bf16");
    let name = "default_type::tokens_of_loss_are_counted_in_type_that_can";
    in_own_process(name, alone, || {
        let mut device = Device::flex();
        device.configure(FloatDType::BF16).unwrap();
        let device = device.autodiff();
        let head = LinearConfig::new(6, 11).init(&device);
        let head = cast(head, FloatDType::F32).unwrap();
        // More tokens than bf16 can represent.
        let hidden = Tensor::<2>::random([1001, 6], Distribution::Default, &device);
        let hidden = hidden.cast(FloatDType::F32);
        let targets = Tensor::<1, Int>::arange(0..1001, &device).remainder_scalar(11);
        let [all, none_ignored] = [None, Some(vec![-100])].map(|pads| {
            let loss = LinearCrossEntropyLossConfig::new().with_pad_tokens(pads);
            let loss = loss.init().forward(&head, hidden.clone(), targets.clone());
            loss.into_scalar::<f32>()
        });
        assert!(
            (all - none_ignored).abs() < 1e-6,
            "{all} and {none_ignored}"
        );
    });
}

#[test]
fn quantized_weight_is_in_type_of_factors() {
    let alone = ("BACKBURN_TEST_TYPE", "bf16");
    let name = "default_type::quantized_weight_is_in_type_of_factors";
    in_own_process(name, alone, || {
        let mut device = Device::flex();
        device.configure(FloatDType::BF16).unwrap();
        let device = device.autodiff();
        let layer: Linear = LinearConfig::new(64, 64).with_bias(false).init(&device);
        let layer = cast(layer, FloatDType::F32).unwrap();
        let lora = Lora::new(4, 8.0).set_dtype(FloatDType::F32);
        let layer = layer.apply_reparameterization(QuantizedLora::new(lora, BaseFormat::Bits4));
        assert_eq!(layer.weight.val().dtype(), DType::F32);
        let x = Tensor::<2>::ones([2, 64], &device).cast(FloatDType::F32);
        assert_eq!(layer.forward(x).dtype(), DType::F32);
    });
}
