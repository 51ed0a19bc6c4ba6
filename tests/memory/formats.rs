//! The bytes of models in formats, during their creation and afterwards.

use backburn::optim::{AdamWConfig, MuonConfig};

use super::*;

const DEPTH: usize = 6;
const WIDTH: usize = 256;
/// Bytes of the largest parameter in f32.
const LARGEST: usize = 4 * 4 * WIDTH * WIDTH;

fn in_bf16() -> Mlp {
    cast(Mlp::init(DEPTH, WIDTH, &device()), FloatDType::BF16).unwrap()
}

#[test]
fn model_is_drawn_and_cast_one_parameter_at_a_time() {
    alone!();
    let mut model = None;
    let needed = peak(|| model = Some(in_bf16()));
    let parameters = 2 * model.unwrap().num_params();
    assert!(parameters > 4 * LARGEST);
    let most = parameters + LARGEST + 150_000;
    assert!(needed < most, "{needed} bytes for {parameters}");
}

/// Bytes of a parameter in bf16 and its state.
fn held_after_three_steps<const D: usize>(
    optimizer: impl Optimizer,
    random: impl Fn() -> Tensor<D>,
) -> usize {
    let mut parameter = random().cast(FloatDType::BF16);
    let mut state = None;
    for _ in 0..3 {
        let gradient = random().cast(FloatDType::BF16);
        (parameter, state) = optimizer.step(0.1, parameter, gradient, state);
    }
    let before = BYTES.current_usage();
    drop((parameter, state));
    before - BYTES.current_usage()
}

#[test]
fn weights_and_states_take_bytes_of_their_formats() {
    alone!();
    use StateFormat::{Bits4, Bits8};
    use WeightFormat::{Split24, Stochastic};
    let groups = 1 << 8;
    let random = || Tensor::<2>::random([128, 128], Distribution::Default, &Device::flex());
    let adamw = |states, weights| {
        let config = AdamWConfig::new().with_state_format(states);
        held_after_three_steps(config.with_weight_format(weights).build(), random)
    };
    let muon = MuonConfig::new().with_state_format(Bits8);
    let muon = held_after_three_steps(muon.with_weight_format(Split24).build(), random);
    // Weights, low bits and checksums, and codes and scales of the moments.
    for (name, held, per_group) in [
        ("8 and 24", adamw(Bits8, Split24), 3 * 64 + 4 + 2 * 68),
        ("8", adamw(Bits8, Stochastic), 2 * 64 + 2 * 68),
        ("4", adamw(Bits4, Stochastic), 2 * 64 + 2 * 36),
        ("Muon in 8 and 24", muon, 3 * 64 + 4 + 68),
    ] {
        let bytes = groups * per_group;
        let is_right = (bytes..bytes + 4000).contains(&held);
        assert!(is_right, "{name}: {held} bytes, {bytes} expected");
    }
}

#[test]
fn full_precision_model_is_made_one_parameter_at_a_time() {
    alone!();
    let ours = |states, weights| {
        let config = AdamWConfig::new().with_state_format(states);
        config.with_weight_format(weights).init()
    };
    let optimizers = [
        ours(StateFormat::Bits8, WeightFormat::Split24),
        ours(StateFormat::Full, WeightFormat::Plain),
        burn::optim::AdamWConfig::new().init(),
    ];
    for (index, optimizer) in optimizers.into_iter().enumerate() {
        let mut fused = FusedOptimizer::new(in_bf16(), optimizer).unwrap();
        let x = x(WIDTH).cast(FloatDType::BF16);
        fused.step(1e-3, |model| model.loss(x.clone())).unwrap();
        let mut full = None;
        let needed = peak(|| full = Some(fused.full_precision_model()));
        let in_f32 = 4 * full.unwrap().num_params();
        // The state is written, in f32, and read again.
        let beside = 6 * LARGEST + 300_000;
        assert!(beside < in_f32, "a small model shows nothing");
        assert!(needed < in_f32 + beside, "{index}: {needed} for {in_f32}");
    }
}

/// The average is in f32.
#[test]
fn average_of_bf16_is_updated_without_copy_of_weight() {
    alone!();
    let device = device();
    let elements = 1 << 20;
    let weight = Tensor::<1>::ones([elements], &device).cast(FloatDType::BF16);
    let averaging = WeightAveragingConfig::new().with_decay(Some(0.9));
    let mut fused = FusedOptimizer::new(
        Param::from_tensor(weight.detach()),
        optim::SgdConfig::new().init(),
    )
    .unwrap()
    .with_config(FusedConfig::averaging(averaging))
    .unwrap();
    let mut step = || drop(fused.step(0.1, |weight| weight.val().sum()).unwrap());
    step();
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    step();
    let peak = (BYTES.peak_usage() - before) as f64 / elements as f64;
    assert!(peak < 3.0, "{peak} bytes per element");
}
