//! Weights come from files one tensor at a time.

use std::path::Path;

use backburn::optim::compact_records;
use backburn::{Checkpoint, Progress};
use burn::store::{ModuleRecord, ModuleSnapshot, PytorchStore, SafetensorsStore};

use super::pytorch_file::{Entry, write};
use super::*;

const DEPTH: usize = 6;
const WIDTH: usize = 256;
/// Bytes of the largest parameter in f32.
const LARGEST: usize = 4 * 4 * WIDTH * WIDTH;

fn init() -> Mlp {
    Mlp::init(DEPTH, WIDTH, &device())
}

fn last(model: &Mlp) -> TensorData {
    let weight = model.layers[3].contract.weight.val().inner();
    weight.cast(FloatDType::BF16).into_data()
}

/// Panics unless `make` returns a model of this type with the weights of `saved`, and holds no more than its loaded
/// parameters and `held` copies in f32 of the current one.
#[track_caller]
fn assert_one_at_a_time(
    saved: &TensorData,
    dtype: FloatDType,
    held: usize,
    make: impl FnOnce() -> Mlp,
) {
    let mut made = None;
    let needed = peak(|| made = Some(make()));
    let model = made.unwrap();
    let weight = model.layers[3].contract.weight.val();
    assert_eq!(weight.dtype(), DType::from(dtype));
    assert!(weight.is_require_grad());
    assert_eq!(last(&model).as_bytes(), saved.as_bytes());
    // In f32, the last of the parameters is the loaded one.
    let size = weight.dtype().size();
    let before = size * model.num_params() - LARGEST / 4 * size;
    let most = before + held * LARGEST + 150_000;
    assert!(needed < most, "{dtype:?}: {needed} bytes, {most} at most");
}

/// Writes a state dict as PyTorch stores it, with transposed weights of linear layers.
fn write_pytorch(model: &Mlp, path: &Path) {
    let mut entries = Vec::new();
    for (index, layer) in model.layers.iter().enumerate() {
        for (name, linear) in [("expand", &layer.expand), ("contract", &layer.contract)] {
            let weight = linear.weight.val().inner().transpose();
            let bias = linear.bias.as_ref().unwrap().val().inner();
            let mut push = |name, shape: Vec<usize>, data: TensorData| {
                entries.push(Entry {
                    name,
                    shape,
                    values: data.iter().collect(),
                });
            };
            let path = format!("layers.{index}.{name}");
            push(
                format!("{path}.weight"),
                weight.dims().to_vec(),
                weight.into_data(),
            );
            push(
                format!("{path}.bias"),
                bias.dims().to_vec(),
                bias.into_data(),
            );
        }
    }
    write(path, &entries);
}

#[test]
fn weights_from_file_are_loaded_one_at_a_time() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let saved = init();
    saved.clone().save_file(file("model.bpk")).unwrap();
    let mut store = SafetensorsStore::from_file(file("model.safetensors"));
    saved.save_into(&mut store).unwrap();
    drop(store);
    write_pytorch(&saved, &file("model.pt"));
    let expected = last(&saved);
    drop(saved);
    for dtype in [FloatDType::BF16, FloatDType::F32] {
        assert_one_at_a_time(&expected, dtype, 2, || {
            let record = ModuleRecord::load(file("model.bpk")).unwrap();
            load_record_in(init(), record, dtype).unwrap()
        });
        assert_one_at_a_time(&expected, dtype, 2, || {
            let store = SafetensorsStore::from_file;
            load_from_store(init(), file("model.safetensors"), store, dtype)
                .unwrap()
                .0
        });
        // Transposes the weights, because PyTorch stores them transposed.
        assert_one_at_a_time(&expected, dtype, 3, || {
            let store = PytorchStore::from_file;
            load_from_store(init(), file("model.pt"), store, dtype)
                .unwrap()
                .0
        });
    }
}

#[test]
fn checkpoint_is_saved_one_tensor_at_a_time() {
    alone!();
    let x = x(WIDTH);
    let averaged = FusedConfig::new().with_averaging(Some(WeightAveragingConfig::new()));
    let offload = OffloadConfig::new(Offload::States).with_host(OffloadHost::NdArray);
    let offloaded = FusedConfig::new().with_offload(Some(offload.with_min_elements(1)));
    for (states, weights, config) in [
        (StateFormat::Full, WeightFormat::Plain, FusedConfig::new()),
        (StateFormat::Bits8, WeightFormat::Plain, FusedConfig::new()),
        (StateFormat::Full, WeightFormat::Split24, FusedConfig::new()),
        (StateFormat::Full, WeightFormat::Plain, averaged),
        (StateFormat::Full, WeightFormat::Plain, offloaded),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::at(folder.path());
        let optimizer = backburn::optim::AdamWConfig::new()
            .with_state_format(states)
            .with_weight_format(weights)
            .init();
        let dtype = match weights {
            WeightFormat::Plain => FloatDType::F32,
            _ => FloatDType::BF16,
        };
        let (model, x) = (cast(init(), dtype).unwrap(), x.clone().cast(dtype));
        let mut fused = FusedOptimizer::new(model, optimizer)
            .unwrap()
            .with_config_on(config.clone(), &device())
            .unwrap();
        fused.step(1e-3, |model| model.loss(x.clone())).unwrap();
        let save = || checkpoint.save(&fused, &Progress::new(1)).unwrap();
        for needed in [peak(save), peak(|| compact_records(save))] {
            // The tensor, a buffer of its bytes, and names.
            assert!(
                needed < 5 * LARGEST / 2,
                "{states:?}, {weights:?}, {config:?}: {needed} bytes"
            );
        }
    }
}

#[test]
fn quantized_base_is_saved_one_tensor_at_a_time() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    let lora = QuantizedLora::new(Lora::new(2, 4.0), BaseFormat::Bits4);
    let model = init().apply_reparameterization(lora);
    let fused = FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let needed = peak(|| checkpoint.save(&fused, &Progress::new(1)).unwrap());
    // All tensors have 1.6 bytes for each weight: 4.9 MB.
    assert!(needed < 3 * LARGEST / 2, "{needed} bytes");
}
