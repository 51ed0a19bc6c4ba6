//! A quantized weight has its dense shape everywhere.

use burn::nn::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use burn::store::BurnpackStore;

use super::*;

#[test]
fn quantized_feed_forward_shows_dense_shapes() {
    for device in cpus() {
        let dense: PositionWiseFeedForward = PositionWiseFeedForwardConfig::new(64, 128)
            .with_dropout(0.0)
            .init(&device);
        let x = Tensor::<3>::ones([2, 3, 64], &device);
        let shown = |model: &PositionWiseFeedForward| format!("{model}");
        let loras = dense.clone().apply_lora(lora());
        for format in FORMATS {
            let model = with_quantized_base(dense.clone(), format);
            assert_eq!(model.linear_inner.weight.shape().dims(), [64, 128]);
            assert_eq!(model.linear_inner.weight.dims(), [64, 128]);
            assert_eq!(shown(&model), shown(&loras));
            assert_eq!(model.forward(x.clone()).dims(), [2, 3, 64]);
            let there_and_back = model.clone().valid().train();
            assert_eq!(shown(&there_and_back), shown(&loras));
            assert_eq!(quantized_values(&there_and_back), quantized_values(&model));
            let forked = model.clone().fork(&device);
            assert_eq!(forked.num_params(), model.num_params());
            let of = |model: &PositionWiseFeedForward| model.forward(x.clone()).into_data();
            assert_eq!(of(&forked), of(&model));
            // Burn's `fork` makes floats of a shape stub, and loading makes a shape stub of them.
            let loaded =
                with_quantized_base(dense.clone(), format).load_record(forked.into_record());
            assert_matches!(loaded.linear_inner.weight.base().dtype(), DType::QFloat(_));
            assert_eq!(of(&loaded), of(&model));
        }
    }
}

#[test]
fn quantized_weight_loaded_in_floats_is_loaded_weight() {
    let device = Device::flex().autodiff();
    let dense: Linear = LinearConfig::new(8, 4).init(&device);
    let other: Linear = LinearConfig::new(8, 4).init(&device);
    let record = || other.clone().into_record();
    let model = with_quantized_base(dense, BaseFormat::Bits4);
    // The record does not contain the quantized values.
    assert!(model.clone().try_load_record(record()).is_err());
    let loaded = model.load_record(record().allow_partial(true));
    let of = |layer: &Linear| layer.weight.val().into_data();
    assert_eq!(of(&loaded), of(&other));
    // The factors stay in f32.
    let rounded = cast(other.clone(), FloatDType::BF16).unwrap();
    let record = rounded.clone().into_record().allow_partial(true);
    let loaded = loaded.load_record(record);
    let expected = of(&rounded).convert_dtype(DType::F32);
    assert_eq!(of(&loaded), expected);
}

#[test]
fn trained_only_checkpoint_of_quantized_base_holds_factors() {
    let initial = quantized(BaseFormat::Bits4);
    let mut fused = fused(initial, FusedConfig::new());
    train(&mut fused, &batches(1), false);
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path()).trained_only();
    checkpoint.save(&fused, &Progress::new(1)).unwrap();
    assert_eq!(checkpoint.model().unwrap().len(), 6);
}

/// Burnpack is the only format that stores them.
#[test]
fn weights_quantized_by_burn_load_as_floats() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quantized.bpk");
    let initial = dense();
    let quantized = initial
        .clone()
        .quantize_weights(&mut quantizer(QuantValue::Q8S));
    let mut store = BurnpackStore::from_file(&file);
    quantized.save_into(&mut store).unwrap();
    let (loaded, _) =
        load_from_store(dense(), &file, BurnpackStore::from_file, FloatDType::F32).unwrap();
    for (initial, loaded) in elements(&initial).into_iter().zip(elements(&loaded)) {
        assert!((initial - loaded).abs() < 0.01, "{initial} and {loaded}");
    }
}
