//! Weights come from files one tensor at a time.

use burn::store::{ModuleSnapshot, PytorchStore, SafetensorsStore};

use super::pytorch_file::{Entry, write};
use super::*;

const DEPTH: usize = 6;
const WIDTH: usize = 256;
/// Bytes of the largest parameter in f32.
const LARGEST: usize = 4 * 4 * WIDTH * WIDTH;

/// Has `load` load a model in both types; panics unless that takes no more than the parameters loaded before and change beside the one at
/// hand, which Burn's store holds `held` times in f32, the type of the file, and gives the weights of `saved`. In f32 the last of these is the loaded one.
fn assert_one_at_a_time(saved: Mlp, held: usize, mut load: impl FnMut(Mlp, FloatDType) -> Mlp) {
    let last = |model: &Mlp| {
        let weight = model.layers[3].contract.weight.val().inner();
        weight.cast(FloatDType::BF16).into_data()
    };
    let expected = last(&saved);
    drop(saved);
    for (dtype, size) in [(FloatDType::BF16, 2), (FloatDType::F32, 4)] {
        let mut loaded = None;
        let needed = peak(|| loaded = Some(load(Mlp::init(DEPTH, WIDTH, &device()), dtype)));
        let model = loaded.unwrap();
        let weight = model.layers[3].contract.weight.val();
        assert_eq!(weight.dtype(), DType::from(dtype));
        assert!(weight.is_require_grad());
        assert_eq!(last(&model).as_bytes(), expected.as_bytes());
        let before = size * model.num_params() - LARGEST / 4 * size;
        assert!(
            needed < before + held * LARGEST + 150_000,
            "{needed} bytes for {before}, and {held} times {LARGEST}"
        );
    }
}

#[test]
fn safetensors_come_straight_into_the_type_of_training() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let saved = Mlp::init(DEPTH, WIDTH, &device());
    let mut store = SafetensorsStore::from_file(&path);
    saved.save_into(&mut store).unwrap();
    drop(store);
    assert_one_at_a_time(saved, 2, |model, dtype| {
        let store = SafetensorsStore::from_file;
        load_from_store(model, &path, store, dtype).unwrap().0
    });
}

#[test]
fn files_of_pytorch_come_straight_into_the_type_of_training() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pt");
    let saved = Mlp::init(DEPTH, WIDTH, &device());
    let mut entries = Vec::new();
    for (index, layer) in saved.layers.iter().enumerate() {
        for (name, linear) in [("expand", &layer.expand), ("contract", &layer.contract)] {
            // PyTorch keeps weights of linear layers the other way round.
            let weight = linear.weight.val().inner().transpose();
            entries.push(Entry {
                name: format!("layers.{index}.{name}.weight"),
                shape: weight.dims().to_vec(),
                values: weight.into_data().iter().collect(),
            });
            let bias = linear.bias.as_ref().unwrap().val().inner();
            entries.push(Entry {
                name: format!("layers.{index}.{name}.bias"),
                shape: bias.dims().to_vec(),
                values: bias.into_data().iter().collect(),
            });
        }
    }
    write(&path, &entries);
    drop(entries);
    // What PyTorch keeps the other way round is turned.
    assert_one_at_a_time(saved, 3, |model, dtype| {
        let store = PytorchStore::from_file;
        load_from_store(model, &path, store, dtype).unwrap().0
    });
}
