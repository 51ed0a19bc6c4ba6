//! Weights of a file are quantized while they are loaded.

use super::*;

#[test]
fn weights_from_file_are_quantized_as_those_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let saved = dense();
    saved
        .save_into(&mut SafetensorsStore::from_file(&path))
        .unwrap();
    let adapters = lora;
    let lora = || QuantizedLora::new(adapters(), BaseFormat::Bits4);
    let store = SafetensorsStore::from_file;
    let load = |dtype| load_quantized_from_store(dense(), &path, store, dtype, lora());
    let (loaded, applied) = load(FloatDType::F32).unwrap();
    assert_eq!(applied.applied.len(), 6);
    let expected = saved.clone().apply_reparameterization(lora());
    let without_factors = |model: &Stack| {
        let mut weights = weights(model);
        weights.retain(|(path, _)| !is_factor(path));
        weights
    };
    assert_eq!(without_factors(&loaded), without_factors(&expected));
    assert_eq!(factors(&loaded).len(), 6);
    let mut fused = FusedOptimizer::new(loaded, AdamConfig::new().init()).unwrap();
    fused
        .step(RATE, |model| model.loss(batches(1).remove(0)))
        .unwrap();
    assert_eq!(fused.last_step().updated, 6);
    // The adapters are in the type of training.
    let (loaded, _) = load(FloatDType::BF16).unwrap();
    assert_eq!(loaded.layers[0].weight.val().dtype(), DType::BF16);

    // The weights of two files are loaded one file after the other.
    let first = |path| {
        SafetensorsStore::from_file(path)
            .with_full_path("layers.0.weight")
            .allow_partial(true)
    };
    let dtype = FloatDType::F32;
    let (half, _) = load_quantized_from_store(dense(), &path, first, dtype, lora()).unwrap();
    let second = &half.layers[1].weight;
    assert!(second.reparameterization::<QuantizedAdapter>().is_none());
    let others = |path| {
        SafetensorsStore::from_file(path)
            .with_regex("layers.[12]|bias")
            .allow_partial(true)
    };
    let (both, _) = load_quantized_from_store(half, &path, others, dtype, lora()).unwrap();
    assert_eq!(without_factors(&both), without_factors(&expected));
    let mut fused = FusedOptimizer::new(both, AdamConfig::new().init()).unwrap();
    fused
        .step(RATE, |model| model.loss(batches(1).remove(0)))
        .unwrap();
    assert_eq!(fused.last_step().updated, 6);

    // A weight that the model holds twice is quantized in both places.
    let layer = LinearConfig::new(WIDTH, WIDTH).init(&flex());
    let twice = vec![layer.clone(), layer];
    let tied = folder.path().join("tied.safetensors");
    twice
        .save_into(&mut SafetensorsStore::from_file(&tied))
        .unwrap();
    let (loaded, _) =
        load_quantized_from_store(twice.clone(), &tied, store, dtype, lora()).unwrap();
    let expected = twice.apply_reparameterization(lora());
    for (loaded, expected) in loaded.iter().zip(&expected) {
        assert_eq!(
            loaded.weight.val().into_data(),
            expected.weight.val().into_data()
        );
    }

    // Clones have the ids of one layer, and each has its own weight in the file.
    let layers = dense().layers;
    let several = folder.path().join("several.safetensors");
    layers
        .save_into(&mut SafetensorsStore::from_file(&several))
        .unwrap();
    let clones = vec![layers[0].clone(); layers.len()];
    let (loaded, _) = load_quantized_from_store(clones, &several, store, dtype, lora()).unwrap();
    let expected = layers.apply_reparameterization(lora());
    for (loaded, expected) in loaded.iter().zip(&expected) {
        assert_eq!(
            loaded.weight.val().into_data(),
            expected.weight.val().into_data()
        );
    }

    // A parameter group without a matrix is an error.
    let nowhere = adapters().set_param_group(ParamGroup::from_predicate("bias"));
    let nowhere = QuantizedLora::new(nowhere, BaseFormat::Bits4);
    let error = load_quantized_from_store(dense(), &path, store, dtype, nowhere.clone());
    let words = "matches no matrix of the model: choose one that matches some of `layers.0.weight`";
    assert_says(&error.unwrap_err(), words);
    let norm = LayerNormConfig::new(WIDTH).init(&flex());
    let error = load_quantized_from_store(norm, &path, store, dtype, nowhere).unwrap_err();
    assert_says(&error, "the model has none: use `load_from_store`");

    // A weight that can't be quantized is an error and does not abort the process.
    let adapted = dense().apply_reparameterization(adapters());
    let part = |path| SafetensorsStore::from_file(path).allow_partial(true);
    let error = load_quantized_from_store(adapted, &path, part, dtype, lora()).unwrap_err();
    assert_says(&error, "`layers.0.weight` already has an adapter");
    let mut broken = saved;
    let weight = broken.layers[2].weight.clone();
    broken.layers[2].weight = weight.map(|weight| weight / 0.0);
    broken
        .save_into(&mut SafetensorsStore::from_file(&path).overwrite(true))
        .unwrap();
    let error = load(FloatDType::F32).unwrap_err();
    assert!(matches!(error, LoadError::Store { .. }));
    assert_says(&error, "`layers.2.weight` has a value that is not finite");
}
