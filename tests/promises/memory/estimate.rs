//! The estimate before training equals the memory that training holds.

use burn::optim::AdafactorConfig;

use crate::common::*;

fn estimate(device: &Device, optimizer: ModuleOptimizer) -> MemoryEstimate {
    let linear = || LinearConfig::new(16, 32).init(device);
    MemoryEstimate::new(&vec![linear(), linear()], &optimizer)
}

const WEIGHT: usize = 4 * 16 * 32;
const BYTES: usize = 2 * (WEIGHT + 4 * 32);

fn estimated_state_is_that_of_optimizer(device: &Device) {
    let momentum = MomentumConfig::new();
    let of_first = ParamGroup::from_predicate("0.");
    let adam = || AdamConfig::new().init();
    for (optimizer, state) in [
        (SgdConfig::new().init(), 0),
        (SgdConfig::new().with_momentum(Some(momentum)).init(), BYTES),
        (adam(), 2 * BYTES),
        (
            adam().with_group(of_first, SgdConfig::new().build(), None),
            BYTES,
        ),
        (AdamConfig::new().with_amsgrad(true).init(), 3 * BYTES),
    ] {
        let estimate = estimate(device, optimizer);
        assert_eq!(estimate.parameters, BYTES);
        assert_eq!(estimate.gradients, BYTES);
        assert_eq!(estimate.largest_gradient, WEIGHT);
        assert_eq!(estimate.optimizer_state, state);
    }
    let factored = estimate(device, AdafactorConfig::new().init());
    assert!((1..BYTES).contains(&factored.optimizer_state));
}

#[test]
fn estimated_states_count_in_their_formats() {
    use backburn::optim::AdamWConfig;

    let device = Device::flex().autodiff();
    let linear = || LinearConfig::new(128, 128).with_bias(false).init(&device);
    let model = backburn::cast(vec![linear(), linear()], FloatDType::BF16).unwrap();
    let elements = 2 * 128 * 128;
    for (states, weights, per_group) in [
        (StateFormat::Bits8, WeightFormat::Plain, 2 * 68),
        (StateFormat::Bits4, WeightFormat::Plain, 2 * 36),
        (StateFormat::Bits8, WeightFormat::Split24, 2 * 68 + 68),
        (StateFormat::Full, WeightFormat::Split24, 8 * 64 + 68),
    ] {
        let optimizer = AdamWConfig::new()
            .with_state_format(states)
            .with_weight_format(weights);
        let estimate = MemoryEstimate::new(&model, &optimizer.init());
        assert_eq!(estimate.parameters, 2 * elements);
        assert_eq!(
            estimate.optimizer_state,
            elements / 64 * per_group,
            "{states:?} {weights:?}"
        );
    }
}

fn estimate_is_the_same_without_autodiff(device: &Device) {
    let adam = || AdamConfig::new().init();
    let of = |device: &Device| estimate(device, adam());
    assert_eq!(of(&device.clone().inner()), of(device));
}

fn estimated_frozen_parameters_have_no_gradient(device: &Device) {
    let norm = BatchNormConfig::new(8).init(device);
    let group = ParamGroup::from_predicate("beta");
    let estimate = MemoryEstimate::new(&norm.freeze_group(group), &AdamConfig::new().init());
    // Scale, shift and two running statistics; the scale is trained.
    assert_eq!(estimate.parameters, 4 * 4 * 8);
    assert_eq!(estimate.gradients, 4 * 8);
    assert_eq!(estimate.optimizer_state, 2 * 4 * 8);
}

on_every_backend!(
    estimate_is_the_same_without_autodiff,
    estimated_state_is_that_of_optimizer,
    estimated_frozen_parameters_have_no_gradient,
);
