//! Invalid formats are refused by name, and nothing is lost.

use super::*;

/// Returns the panic message of a step. The parameter that it names keeps its value.
fn message(fused: &mut FusedOptimizer<Network>, x: &Tensor<2>) -> String {
    let before = weights(&fused.model());
    let text = panic_of(|| fused.step(RATE, |model| model.loss(x.clone())).unwrap());
    let after = weights(&fused.model());
    let pairs = before.iter().zip(&after);
    let named: Vec<_> = pairs.filter(|((path, _), _)| text.contains(path)).collect();
    assert_eq!(named.len(), 1, "{text}");
    assert_eq!(named[0].0, named[0].1);
    // The state is not lost: the same step is refused again.
    let again = panic_of(|| fused.step(RATE, |model| model.loss(x.clone())).unwrap());
    assert_eq!(again, text);
    text
}

on_every_backend!(
    bf16_formats_refuse_other_types,
    low_bit_states_of_f64_parameters_are_refused,
    low_bit_states_refuse_micro_batches,
);

fn bf16_formats_refuse_other_types(device: &Device) {
    let has_bf16 = device.supports_dtype(FloatDType::BF16);
    for format in [WeightFormat::Stochastic, WeightFormat::Split24] {
        for (name, optimizer) in optimizers(StateFormat::Full, format) {
            let error = FusedOptimizer::new(Network::init(device), optimizer).map(drop);
            let error = error.expect_err("it is refused before the first step");
            assert_matches!(error, FusedError::UnsupportedParameter { .. });
            let text = error.to_string();
            let device = format!("{:?}", device.clone().inner());
            let parts = match has_bf16 {
                true => ["first.", "F32", "cast"],
                false => ["first.", "does not have", &device],
            };
            for part in parts.into_iter().chain([&format!("{format:?}")[..]]) {
                assert!(text.contains(part), "{name}: {text}");
            }
        }
    }
}

#[test]
fn weight_format_of_small_parameter_is_refused_at_construction() {
    let device = Device::flex().autodiff();
    let fused = |dtype: FloatDType, optimizer: ModuleOptimizer| {
        let layer: Linear = LinearConfig::new(3, 2).init(&device);
        FusedOptimizer::new(cast(layer, dtype).unwrap(), optimizer).map(drop)
    };
    for format in [WeightFormat::Stochastic, WeightFormat::Split24] {
        for (name, optimizer) in optimizers(StateFormat::Full, format) {
            for dtype in [FloatDType::F16, FloatDType::F64] {
                let error = fused(dtype, optimizer.clone()).unwrap_err();
                let is_named = matches!(error, FusedError::UnsupportedParameter { .. });
                assert!(is_named, "{name}: {error}");
            }
            // Small parameters in f32 are updated without a format, next to others in bf16.
            for dtype in [FloatDType::F32, FloatDType::BF16] {
                assert_eq!(fused(dtype, optimizer.clone()), Ok(()), "{name}");
            }
        }
    }
}

fn low_bit_states_of_f64_parameters_are_refused(device: &Device) {
    let model = cast(Network::init(device), FloatDType::F64).unwrap();
    let optimizer = optim::AdamConfig::new().with_state_format(StateFormat::Bits8);
    let error = FusedOptimizer::new(model, optimizer.init()).unwrap_err();
    for words in ["F64", "StateFormat"] {
        assert_says(&error, words);
    }
}

#[test]
fn low_bits_that_would_be_dropped_are_refused() {
    let device = &Device::flex().autodiff();
    let with = |format| optim::AdamWConfig::new().with_weight_format(format).init();
    let model = cast(Network::init(device), FloatDType::BF16).unwrap();
    let batches = batches(device, FloatDType::BF16);
    let mut fused = FusedOptimizer::new(model, with(WeightFormat::Split24)).unwrap();
    fused
        .step(RATE, |model| model.loss(batches[0].clone()))
        .unwrap();
    for format in [WeightFormat::Plain, WeightFormat::Stochastic] {
        let mut other = FusedOptimizer::new(fused.model(), with(format)).unwrap();
        other.load_record(fused.to_record()).unwrap();
        let text = message(&mut other, &batches[1]);
        assert_says(&text, "low bits");
    }
    // Accumulation in the state would also drop them.
    let plain = optim::AdamWConfig::new().build();
    let mut in_state = FusedOptimizer::accumulating_in_state(fused.model(), plain).unwrap();
    in_state.load_record(fused.to_record()).unwrap();
    let text = message(&mut in_state, &batches[1]);
    assert_says(&text, "low bits");
    // The model in full precision has all bits.
    let batches_in_full = self::batches(device, FloatDType::F32);
    let mut full =
        FusedOptimizer::new(fused.full_precision_model(), with(WeightFormat::Plain)).unwrap();
    full.load_record(fused.to_record()).unwrap();
    full.step(RATE, |model| model.loss(batches_in_full[1].clone()))
        .unwrap();
    // An optimizer without the format would drop them.
    let stock = burn::optim::AdamWConfig::new().init();
    let error = FusedOptimizer::new(fused.model(), stock)
        .unwrap()
        .load_record(fused.to_record());
    let error = error.unwrap_err();
    assert_matches!(error, FusedError::RecordOfAnotherOptimizer { .. });
    assert_says(&error, "low_bits");
}

/// bf16 weights that were only cast to another type do not have full precision.
#[test]
fn low_bits_in_another_type_are_refused() {
    let device = &Device::flex().autodiff();
    let split = optimizers(StateFormat::Full, WeightFormat::Split24);
    let plain = optimizers(StateFormat::Full, WeightFormat::Plain);
    for ((name, split), (_, plain)) in split.into_iter().zip(plain) {
        let model = cast(Network::init(device), FloatDType::BF16).unwrap();
        let batch = batches(device, FloatDType::BF16)[0].clone();
        let mut fused = FusedOptimizer::new(model, split).unwrap();
        fused.step(RATE, |model| model.loss(batch)).unwrap();
        for dtype in [FloatDType::F32, FloatDType::F64, FloatDType::F16] {
            println!("{name}, {dtype:?}");
            let batch = &batches(device, dtype)[0];
            let rounded = cast(fused.model(), dtype).unwrap();
            let mut rounded = FusedOptimizer::new(rounded, plain.clone()).unwrap();
            rounded.load_record(fused.to_record()).unwrap();
            let text = message(&mut rounded, batch);
            assert_says(&text, "low bits");
            let full = cast(fused.full_precision_model(), dtype).unwrap();
            let mut full = FusedOptimizer::new(full, plain.clone()).unwrap();
            full.load_record(fused.to_record()).unwrap();
            full.step(RATE, |model| model.loss(batch.clone())).unwrap();
        }
    }
}

fn low_bit_states_refuse_micro_batches(device: &Device) {
    let optimizer = optim::AdamWConfig::new().with_state_format(StateFormat::Bits8);
    let fused = FusedOptimizer::accumulating_in_state(Network::init(device), optimizer.build());
    let error = fused.map(drop).unwrap_err().to_string();
    assert_says(&error, "low-bit");
}

/// Returns a training of a weight with this shape, after one step.
fn trained(shape: [usize; 2], optimizer: &ModuleOptimizer) -> FusedOptimizer<Linear> {
    let device = Device::flex().autodiff();
    let config = LinearConfig::new(shape[0], shape[1]).with_bias(false);
    let model = cast(config.init(&device), FloatDType::BF16).unwrap();
    let mut fused = FusedOptimizer::new(model, optimizer.clone()).unwrap();
    let x = Tensor::<2>::ones([2, shape[0]], &Device::flex()).cast(FloatDType::BF16);
    fused
        .step(RATE, |model| model.forward(Tensor::from_inner(x)).mean())
        .unwrap();
    fused
}

#[test]
fn record_of_another_shape_is_refused_and_state_is_unchanged() {
    for (_, optimizer) in optimizers(StateFormat::Bits8, WeightFormat::Split24) {
        for shapes in [[[64, 64], [64, 128]], [[64, 128], [64, 64]]] {
            let [donor, mut fused] = shapes.map(|shape| trained(shape, &optimizer));
            // The same parameter, by its id.
            fused
                .change_model(|mut model| {
                    model.weight = Param::initialized(donor.model().weight.id, model.weight.val());
                    model
                })
                .unwrap();
            let before = fused.to_record().into_bytes().unwrap();
            for record in both_records(&donor) {
                let error = fused.load_record(record).unwrap_err();
                assert_matches!(error, FusedError::RecordShape { .. });
            }
            let after = fused.to_record().into_bytes().unwrap();
            assert_eq!(&before[..], &after[..]);
        }
    }
}
