//! Models from files of other programs.

use burn::store::{HalfPrecisionAdapter, ModuleSnapshot, PytorchStore, SafetensorsStore};

use crate::common::*;

#[derive(Module, Debug)]
struct Net {
    rows: Linear,
    norm: BatchNorm,
    columns: Linear,
}

impl Net {
    fn init(width: usize, device: &Device) -> Self {
        let columns = LinearConfig::new(width, 3).with_layout(LinearLayout::Col);
        Self {
            rows: LinearConfig::new(4, width).init(device),
            norm: BatchNormConfig::new(width).init(device),
            columns: columns.init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.columns
            .forward(self.norm.forward(self.rows.forward(x)))
    }
}

/// `model` as a file, all of it in f16 if `half`.
fn file(model: &Net, half: bool) -> Vec<u8> {
    let mut store = SafetensorsStore::from_bytes(None);
    if half {
        store = store.with_to_adapter(HalfPrecisionAdapter::new().with_module("BatchNorm"));
    }
    model.save_into(&mut store).unwrap();
    store.get_bytes().unwrap()
}

#[test]
fn file_in_half_precision_loads_in_type_of_training() {
    let device = Device::flex().autodiff();
    let saved = Net::init(5, &device);
    for half in [false, true] {
        let store = |_| SafetensorsStore::from_bytes(Some(file(&saved, half)));
        let model = Net::init(5, &device);
        let (model, _) = load_from_store(model, "bytes", store, FloatDType::F32).unwrap();
        for ((path, saved), (_, loaded)) in weights(&saved).iter().zip(&weights(&model)) {
            // This includes running statistics.
            assert_eq!(loaded.dtype(), DType::F32, "{path}");
            let near = |(a, b): (f32, f32)| (a - b).abs() < 1e-3;
            assert!(
                saved.iter::<f32>().zip(loaded.iter::<f32>()).all(near),
                "{path}"
            );
        }
        let x = Tensor::<2>::random([6, 4], Distribution::Default, &device);
        assert_eq!(model.forward(x).dims(), [6, 3]);
    }
}

/// In f16, which `ndarray` and some GPUs don't have.
fn file_in_type_that_device_lacks_is_loaded(device: &Device) {
    let host = Device::flex().autodiff();
    let bytes = file(&Net::init(5, &host), true);
    let load = |device| {
        let store = |_| SafetensorsStore::from_bytes(Some(bytes.clone()));
        let model = Net::init(5, device);
        let (model, _) = load_from_store(model, "bytes", store, FloatDType::F32).unwrap();
        assert!(model.rows.weight.val().is_require_grad());
        assert_eq!(model.devices()[0], *device);
        weights(&model)
    };
    for ((path, expected), (_, loaded)) in load(&host).iter().zip(&load(device)) {
        assert_eq!(expected, loaded, "{path}");
    }
}

on_every_backend!(file_in_type_that_device_lacks_is_loaded);

#[test]
fn file_that_fails_to_load_is_named() {
    let device = Device::flex().autodiff();
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.safetensors");
    std::fs::write(&broken, b"nonsense").unwrap();
    let other = folder.path().join("other.safetensors");
    std::fs::write(&other, file(&Net::init(6, &device), false)).unwrap();
    for path in [broken, other, folder.path().join("absent.safetensors")] {
        for validate in [true, false] {
            let open = |path| SafetensorsStore::from_file(path).validate(validate);
            let error = load_from_store(Net::init(5, &device), &path, open, FloatDType::F32);
            let error = error.map(drop).unwrap_err();
            let name = path.display().to_string();
            assert!(error.to_string().contains(&name), "{error}");
        }
        let error = load_from_store(
            Net::init(5, &device),
            &path,
            PytorchStore::from_file,
            FloatDType::F32,
        );
        let LoadError::Store { path: named, .. } = error.map(drop).unwrap_err() else {
            panic!("it is the file");
        };
        assert_eq!(named, path);
    }
}

#[test]
fn file_without_weights_is_named_by_its_kind() {
    let device = Device::flex().autodiff();
    let folder = tempfile::tempdir().unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    for (name, contents, words) in [
        ("a.safetensors", pointer, "git lfs pull"),
        ("b.safetensors", "\n<!DOCTYPE html><html>", "HTML page"),
        (
            "model.safetensors.index.json",
            "{\"weight_map\": {}}",
            "`weight_map`",
        ),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, contents).unwrap();
        let open = SafetensorsStore::from_file;
        let loaded = load_from_store(Net::init(5, &device), &path, open, FloatDType::F32);
        let error = loaded.map(drop).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(name), "{error}");
    }
}

#[test]
fn tensors_of_wrong_shape_are_refused_by_any_store() {
    let device = Device::flex().autodiff();
    let bytes = file(&Net::init(5, &device), false);
    for validate in [true, false] {
        let store = |_| SafetensorsStore::from_bytes(Some(bytes.clone())).validate(validate);
        let model = Net::init(6, &device);
        let Err(LoadError::Store { reason, .. }) =
            load_from_store(model, "bytes", store, FloatDType::F32)
        else {
            panic!("it was not refused")
        };
        assert_says(&reason, "rows.weight");
    }
}

#[test]
fn tensors_missing_in_one_file_come_from_another() {
    let device = Device::flex().autodiff();
    let saved = Net::init(5, &device);
    let bytes = file(&saved, false);
    let mut model = Net::init(5, &device);
    let mut missing = Vec::new();
    for part in ["rows", "norm", "columns"] {
        let store = |_| {
            SafetensorsStore::from_bytes(Some(bytes.clone()))
                .with_regex(format!("^{part}"))
                .allow_partial(true)
        };
        let applied;
        (model, applied) = load_from_store(model, "bytes", store, FloatDType::F32).unwrap();
        missing.push(applied.applied.len());
    }
    assert_eq!(missing, [2, 4, 2]);
    for ((path, saved), (_, loaded)) in weights(&saved).iter().zip(&weights(&model)) {
        assert_eq!(saved.as_bytes(), loaded.as_bytes(), "{path}");
    }
}
