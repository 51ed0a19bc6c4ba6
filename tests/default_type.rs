//! Tests on a device with another default float type.
//!
//! A process of its own: the type is chosen before the device is used.

use backburn::LinearCrossEntropyLossConfig;
use burn::nn::LinearConfig;
use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor};

#[test]
fn the_tokens_of_a_loss_are_counted_in_a_type_that_can() {
    let mut device = Device::flex();
    device.configure(FloatDType::BF16).unwrap();
    let device = device.autodiff();
    let head = LinearConfig::new(6, 11).init(&device);
    let head = backburn::cast(head, FloatDType::F32).unwrap();
    // More than bf16 can count.
    let hidden = Tensor::<2>::random([1001, 6], Distribution::Default, &device);
    let hidden = hidden.cast(FloatDType::F32);
    let targets = Tensor::<1, Int>::arange(0..1001, &device).remainder_scalar(11);
    let loss = |pads| {
        let config = LinearCrossEntropyLossConfig::new().with_pad_tokens(pads);
        let loss = config
            .init()
            .forward(&head, hidden.clone(), targets.clone());
        loss.into_scalar::<f32>()
    };
    let (all, none_ignored) = (loss(None), loss(Some(vec![-100])));
    assert!(
        (all - none_ignored).abs() < 1e-6,
        "{all} and {none_ignored}"
    );
}
