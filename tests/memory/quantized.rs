//! The bytes of a quantized base: between steps, in a step, and during loading.

use backburn_nn::linear;
use burn::store::{ModuleRecord, ModuleSnapshot, SafetensorsStore};

use super::*;

const DEPTH: usize = 6;
const WIDTH: usize = 128;
/// The bytes per parameter that Burn and backburn need in addition to its values.
const NOTES: usize = 9_000 * 6 * DEPTH;
/// Bytes of the largest weight in f32.
const LARGEST: usize = 4 * 4 * WIDTH * WIDTH;

fn lora() -> QuantizedLora {
    QuantizedLora::new(Lora::new(1, 2.0), BaseFormat::Bits4)
}

/// Bytes of the model in f32, of its quantized values, and of its adapters and biases.
fn bytes() -> [usize; 3] {
    let dense = 4 * Mlp::init(DEPTH, WIDTH, &device()).num_params();
    let weights = DEPTH * 2 * 4 * WIDTH * WIDTH;
    let adapters = DEPTH * 2 * 4 * (WIDTH + 4 * WIDTH);
    [dense, weights * 36 / 64, adapters + dense - 4 * weights]
}

#[test]
fn quantized_base_is_dense_for_one_layer_at_a_time() {
    alone!();
    let [dense, codes, others] = bytes();
    let x = Tensor::<2>::random([2, WIDTH], Distribution::Default, &device());
    let by_operation = |layer: &Residual, x: Tensor<2>| {
        let hidden = Gelu::new().forward(linear(&layer.expand, x.clone()));
        x + linear(&layer.contract, hidden)
    };
    let on_tape_loss = |model: &Mlp, x| {
        model
            .layers
            .iter()
            .fold(x, |x, it| by_operation(it, x))
            .mean()
    };
    type Loss<'a> = &'a dyn Fn(&Mlp, Tensor<2>) -> Tensor<1>;
    let train = |loss: Loss<'_>| {
        let before = BYTES.current_usage();
        let model = Mlp::init(DEPTH, WIDTH, &device()).apply_reparameterization(lora());
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
        let mut step = || {
            BYTES.reset_peak_usage();
            fused.step(1e-3, |model| loss(model, x.clone())).unwrap();
            BYTES.current_usage()
        };
        step();
        let rest = step();
        Some((rest.checked_sub(before)?, BYTES.peak_usage() - rest))
    };
    for loss in [&Mlp::recomputed_loss as Loss<'_>, &on_tape_loss] {
        // The first training starts threads, which keep their buffers. Later, threads of other tests may free theirs.
        train(loss);
        let measured = (0..3).find_map(|_| train(loss));
        let (held, above) = measured.expect("no other thread ends");
        let bound = codes + others + NOTES;
        assert!(held < bound, "{held} bytes, at most {bound}");
        // The weight that is composed and its inputs, or its gradient: with 48 blocks of two, less than a twentieth of the
        // model.
        assert!(above < 3 * LARGEST, "{above} above {held}, of {dense}");
    }
}

/// On `ndarray` a shape stub takes one byte per weight, and twice that after Burn has transferred it. Burn's `fork` makes
/// floats of it.
#[test]
fn loaded_and_moved_base_takes_bytes_of_its_format() {
    alone!();
    let init = |device: &Device| Mlp::init(DEPTH, WIDTH, device).apply_reparameterization(lora());
    let [_, codes, others] = bytes();
    let weights = codes * 64 / 36;
    type Change<'a> = &'a dyn Fn(Mlp) -> Mlp;
    let loaded: Change<'_> = &|model| init(&device()).load_record(model.into_record());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.bpk");
    let reread: Change<'_> = &|model| {
        model.into_record().save(&path).unwrap();
        init(&device()).load_record(ModuleRecord::load(&path).unwrap())
    };
    let moved: Change<'_> = &|model| model.to_device(&other());
    let forked: Change<'_> = &|model| model.fork(&device());
    let loaded_from_fork: Change<'_> = &|model| loaded(forked(model));
    for (name, change, of_stubs) in [
        ("loaded", loaded, 0),
        ("loaded from a file", reread, 0),
        ("moved", moved, 2 * weights),
        ("forked", forked, 4 * weights),
        ("loaded from a fork", loaded_from_fork, 0),
    ] {
        // The first change starts threads, which keep their buffers.
        drop(change(init(&device())));
        let before = BYTES.current_usage();
        let model = change(init(&device()));
        let held = BYTES.current_usage() - before;
        let bound = codes + of_stubs + others + NOTES;
        assert!(held < bound, "{name}: {held} bytes, at most {bound}");
        drop(model);
    }
}

#[test]
fn weights_from_file_are_quantized_one_at_a_time() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut store = SafetensorsStore::from_file(&path);
    Mlp::init(DEPTH, WIDTH, &device())
        .save_into(&mut store)
        .unwrap();
    drop(store);
    let [_, codes, others] = bytes();
    let mut loaded = None;
    let needed = peak(|| {
        let model = Mlp::init(DEPTH, WIDTH, &device());
        let (store, dtype) = (SafetensorsStore::from_file, FloatDType::F32);
        loaded = Some(load_quantized_from_store(model, &path, store, dtype, lora()).unwrap());
    });
    // Burn's store holds the current tensor twice.
    let bound = codes + others + 2 * LARGEST + 150_000;
    assert!(needed < bound, "{needed} bytes, at most {bound}");
}
