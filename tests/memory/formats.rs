//! Models in fewer bytes: how they come to be, and what they hold.

use backburn::optim::{AdamWConfig, MuonConfig};
use burn::store::ModuleRecord;

use super::*;

const DEPTH: usize = 6;
const WIDTH: usize = 256;
/// Bytes of the largest parameter in f32.
const LARGEST: usize = 4 * 4 * WIDTH * WIDTH;

fn in_bf16() -> Mlp {
    // Parameters are drawn when they are first looked at.
    cast(Mlp::init(DEPTH, WIDTH, &device()), FloatDType::BF16).unwrap()
}

/// Panics unless `make` needs no more than the model, its largest parameter in f32, and change.
fn assert_one_at_a_time(make: impl FnOnce() -> Mlp) {
    let mut model = None;
    let needed = peak(|| model = Some(make()));
    let model = model.unwrap();
    assert_eq!(model.layers[0].expand.weight.val().dtype(), DType::BF16);
    let parameters = 2 * model.num_params();
    assert!(parameters > 4 * LARGEST);
    assert!(
        needed < parameters + LARGEST + 150_000,
        "{needed} bytes for {parameters}, and {LARGEST}"
    );
}

#[test]
fn a_model_is_cast_one_parameter_at_a_time() {
    let _alone = ALONE.lock();
    assert_one_at_a_time(in_bf16);
}

#[test]
fn a_file_in_f32_is_loaded_into_a_model_in_bf16_one_parameter_at_a_time() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.bpk");
    let saved = Mlp::init(DEPTH, WIDTH, &device());
    saved.clone().save_file(&file).unwrap();
    let expected = cast(saved.clone(), FloatDType::BF16).unwrap().layers[3]
        .contract
        .clone();
    drop(saved);
    let mut last = None;
    assert_one_at_a_time(|| {
        let record = ModuleRecord::load(&file).unwrap();
        let model = Mlp::init(DEPTH, WIDTH, &device());
        let loaded = load_record_in(model, record, FloatDType::BF16).unwrap();
        last = Some(loaded.layers[3].contract.clone());
        loaded
    });
    let loaded = last.unwrap();
    assert_eq!(
        loaded.weight.val().into_data(),
        expected.weight.val().into_data()
    );
}

#[test]
fn weights_and_states_take_the_bytes_of_their_formats() {
    let _alone = ALONE.lock();
    let device = Device::flex();
    let elements = 1 << 14;
    let random = || Tensor::<1>::random([elements], Distribution::Default, &device);
    for (states, weights, per_group) in [
        // Weights and low bits, their marks, codes and scales of two moments.
        (
            StateFormat::Bits8,
            WeightFormat::Split24,
            3 * 64 + 4 + 2 * 68,
        ),
        (
            StateFormat::Bits8,
            WeightFormat::Stochastic,
            2 * 64 + 2 * 68,
        ),
        (
            StateFormat::Bits4,
            WeightFormat::Stochastic,
            2 * 64 + 2 * 36,
        ),
    ] {
        let optimizer = AdamWConfig::new()
            .with_state_format(states)
            .with_weight_format(weights)
            .build();
        let held = held_after_three_steps(optimizer, random);
        let expected = elements / 64 * per_group;
        assert!(
            (expected..expected + 4000).contains(&held),
            "{states:?}, {weights:?}: {held} bytes, {expected} expected"
        );
    }
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

/// Weights and low bits, their marks, codes and a scale of one momentum, for every 64 elements.
#[test]
fn muon_takes_the_bytes_of_its_formats() {
    let _alone = ALONE.lock();
    let device = Device::flex();
    let shape = [128, 96];
    let random = || Tensor::<2>::random(shape, Distribution::Default, &device);
    let optimizer = MuonConfig::new()
        .with_state_format(StateFormat::Bits8)
        .with_weight_format(WeightFormat::Split24)
        .build();
    let held = held_after_three_steps(optimizer, random);
    let expected = 128 * 96 / 64 * (3 * 64 + 4 + 68);
    assert!(
        (expected..expected + 4000).contains(&held),
        "{held} bytes, {expected} expected"
    );
}

/// The export is the f32 model, and takes at most one parameter in addition.
#[test]
fn full_precision_is_made_one_parameter_at_a_time() {
    let _alone = ALONE.lock();
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
        let mut fused = FusedOptimizer::new_ok(in_bf16(), optimizer);
        let x = x(WIDTH).cast(FloatDType::BF16);
        fused.step_ok(1e-3, |model| model.loss(x.clone()));
        let mut full = None;
        let needed = peak(|| full = Some(fused.full_precision_model()));
        let in_f32 = 4 * full.unwrap().num_params();
        // Its state as it is written, in bytes of a parameter in f32, and read again.
        let beside = 6 * LARGEST + 300_000;
        assert!(beside < in_f32, "a small model shows nothing");
        assert!(
            needed < in_f32 + beside,
            "{index}: {needed} bytes for {in_f32}, and {LARGEST}"
        );
    }
}
