//! Comparison with PyTorch, `transformers` and `peft` on tiny models.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use backburn::optim::AdamWConfig;
use backburn::{BaseFormat, FusedConfig, FusedOptimizer, GlobalNormClippingConfig, QuantizedLora};
use burn::module::Module;
use burn::prelude::*;
use burn::store::{ModuleStore, SafetensorsStore, bridge};
use burn::tensor::{DType, FloatDType, TensorData};
use serde::Deserialize;

use finetune::adapters::{Adapters, TARGETS};
use finetune::config::DecoderConfig;
use finetune::decoder::{Decoder, IGNORED};
use finetune::model_files;
use finetune::rows::Batch;
use finetune::schedule::Schedule;
use finetune::step::step;
use finetune::weights;

const MODELS: [&str; 5] = ["llama", "llama-tied", "mistral", "qwen2", "qwen3"];

#[derive(Deserialize)]
struct Expected {
    rates: Vec<f64>,
    warm_up: usize,
    max_norm: f64,
    rank: usize,
    alpha: f64,
    weight_decay: f32,
    runs: BTreeMap<String, Run>,
}

#[derive(Deserialize)]
struct Run {
    losses: Vec<f64>,
    norms: BTreeMap<String, f64>,
}

fn folder(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("reference")
        .join(model)
}

fn expected(model: &str) -> Expected {
    let text = std::fs::read(folder(model).join("expected.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn load(model: &str) -> Decoder {
    let config = DecoderConfig::read(&folder(model)).unwrap();
    let decoder = Decoder::init(&config, true, &device());
    weights::load(decoder, &folder(model), FloatDType::F32, None).unwrap()
}

fn adapters(expected: &Expected) -> Adapters {
    Adapters {
        rank: expected.rank,
        alpha: expected.alpha,
        targets: TARGETS.map(String::from).to_vec(),
    }
}

/// All tensors of a file.
fn tensors(file: &Path) -> BTreeMap<String, TensorData> {
    let mut store = SafetensorsStore::from_file(file);
    let all = store.get_all_tensors().unwrap();
    let read = |(name, tensor): (&String, _)| (name.clone(), bridge::to_data(tensor).unwrap());
    all.iter().map(read).collect()
}

fn norms(file: &Path) -> BTreeMap<String, f64> {
    let norm = |data: TensorData| data.iter::<f64>().map(|it| it * it).sum::<f64>().sqrt();
    let all = tensors(file).into_iter();
    all.map(|(name, data)| (name, norm(data))).collect()
}

/// The micro-batches of a step.
fn parts(tensors: &BTreeMap<String, TensorData>, step: usize, parts: usize) -> Vec<Batch> {
    let tensor = |name: &str| Tensor::<3, Int>::from_data(tensors[name].clone(), &device());
    let tokens = tensor("tokens").narrow(0, step, 1).squeeze_dim::<2>(0);
    let counted = tensor("counted").narrow(0, step, 1).squeeze_dim::<2>(0);
    let length = tokens.dims()[1] - 1;
    let targets = tokens.clone().narrow(1, 1, length);
    let targets = targets.mask_fill(counted.equal_scalar(0), IGNORED);
    let (tokens, targets) = (
        tokens.narrow(1, 0, length).chunk(parts, 0),
        targets.chunk(parts, 0),
    );
    let batch = |(tokens, targets): (_, Tensor<2, Int>)| Batch {
        tokens,
        counted: targets
            .clone()
            .into_data()
            .iter::<i64>()
            .filter(|it| *it != IGNORED)
            .count(),
        targets,
    };
    tokens.into_iter().zip(targets).map(batch).collect()
}

/// The largest difference, as a share of the largest number.
fn difference(found: &TensorData, expected: &TensorData) -> f64 {
    assert_eq!(found.num_elements(), expected.num_elements());
    let (found, expected) = (found.iter::<f64>(), expected.iter::<f64>());
    let (mut apart, mut largest) = (0.0_f64, 0.0_f64);
    for (found, expected) in found.zip(expected) {
        // The maximum passes over NaN.
        assert!(found.is_finite(), "{found}");
        apart = apart.max((found - expected).abs());
        largest = largest.max(expected.abs());
    }
    apart / largest
}

fn logits(model: &Decoder, tensors: &BTreeMap<String, TensorData>) -> TensorData {
    let tokens = parts(tensors, 0, 2).remove(0).tokens;
    model.valid().logits(tokens.inner()).into_data()
}

/// The decoder that the run of that name trains.
fn initial(model: &str, run: &str) -> Decoder {
    let format = match run {
        "qlora8" => BaseFormat::Bits8,
        "qlora4" => BaseFormat::Bits4,
        "lora" => return adapted(load(model), model),
        _ => return load(model),
    };
    let folder = folder(model);
    let decoder = Decoder::init(&DecoderConfig::read(&folder).unwrap(), true, &device());
    let lora = QuantizedLora::new(adapters(&expected(model)).lora(64), format);
    let decoder = weights::load(decoder, &folder, FloatDType::F32, Some(&lora)).unwrap();
    Adapters::load(
        decoder,
        &folder.join("expected.safetensors"),
        FloatDType::F32,
    )
    .unwrap()
}

/// Adds the adapters that PyTorch begins with.
fn adapted(decoder: Decoder, model: &str) -> Decoder {
    let decoder = decoder.apply_lora(adapters(&expected(model)).lora(64));
    let file = folder(model).join("expected.safetensors");
    Adapters::load(decoder, &file, FloatDType::F32).unwrap()
}

/// Returns the losses of the steps of a run, and the trained decoder.
fn steps(decoder: Decoder, model: &str, run: &str) -> (Vec<f64>, Decoder) {
    let expected = expected(model);
    let all = tensors(&folder(model).join("expected.safetensors"));
    let optimizer = AdamWConfig::new()
        .with_epsilon(1e-8)
        .with_weight_decay(expected.weight_decay)
        .init();
    let clipping = GlobalNormClippingConfig::Exact(expected.max_norm);
    let config = FusedConfig::new().with_clipping((run == "clipping").then_some(clipping));
    let fused = FusedOptimizer::new(decoder, optimizer).unwrap();
    let mut fused = fused.with_config(config).unwrap();
    let schedule = Schedule {
        rate: 1e-3,
        warm_up: expected.warm_up,
        steps: expected.rates.len(),
    };
    let mut losses = Vec::new();
    for (index, rate) in expected.rates.iter().enumerate() {
        assert!((schedule.rate(index) - rate).abs() < 1e-12, "step {index}");
        let count = if run == "accumulation" { 2 } else { 1 };
        let loss = step(&mut fused, schedule.rate(index), parts(&all, index, count));
        losses.push(loss.unwrap());
    }
    (losses, fused.model())
}

/// The folder in which a script finds what a run has written.
fn out(model: &str, run: &str) -> (PathBuf, tempfile::TempDir) {
    let temporary = tempfile::tempdir().unwrap();
    let out = std::env::var_os("FINETUNE_OUT").map(PathBuf::from);
    let out = out.unwrap_or(temporary.path().to_path_buf());
    (out.join(format!("{model}-{run}")), temporary)
}

/// Trains as the run of that name, and returns where to write the result.
fn train(model: &str, run: &str) -> (Vec<f64>, Decoder, PathBuf, tempfile::TempDir) {
    let (losses, decoder) = steps(initial(model, run), model, run);
    let (out, temporary) = out(model, run);
    (losses, decoder, out, temporary)
}

#[test]
fn logits_equal_those_of_transformers() {
    for model in MODELS {
        let all = tensors(&folder(model).join("expected.safetensors"));
        let apart = difference(&logits(&load(model), &all), &all["logits"]);
        assert!(apart < 1e-4, "{model}: {apart:e}");
    }
}

#[test]
fn ten_steps_equal_those_of_pytorch() {
    for model in MODELS {
        for run in ["full", "accumulation", "clipping", "lora"] {
            let (losses, decoder, out, _temporary) = train(model, run);
            let expected = expected(model);
            let wanted = &expected.runs[run];
            for (step, (loss, wanted)) in losses.iter().zip(&wanted.losses).enumerate() {
                let apart = (loss - wanted).abs() / wanted;
                assert!(
                    apart < 1e-4,
                    "{model}, {run}, loss of step {step}: {apart:e}"
                );
            }
            let file = match run {
                "lora" => {
                    let adapters = adapters(&expected);
                    model_files::write_adapters(&decoder, &adapters, &folder(model), &out).unwrap();
                    out.join("adapter_model.safetensors")
                }
                _ => {
                    model_files::write_model(&decoder, &folder(model), &out, DType::F32).unwrap();
                    out.join("model.safetensors")
                }
            };
            let found = norms(&file);
            let names: Vec<_> = found.keys().collect();
            assert_eq!(
                names,
                wanted.norms.keys().collect::<Vec<_>>(),
                "{model}, {run}"
            );
            for (name, wanted) in &wanted.norms {
                let apart = (found[name] - wanted).abs() / wanted;
                assert!(apart < 1e-4, "{model}, {run}, {name}: {apart:e}");
            }
        }
    }
}

#[test]
fn merged_adapters_keep_logits() {
    for model in MODELS {
        let (_, decoder, out, _temporary) = train(model, "lora");
        let all = tensors(&folder(model).join("expected.safetensors"));
        let apart = difference(&logits(&decoder, &all), &all["lora.logits"]);
        assert!(apart < 1e-3, "{model}, adapters: {apart:e}");
        let merged: Decoder = decoder.materialize();
        let out = out.with_file_name(format!("{model}-merged"));
        model_files::write_model(&merged, &folder(model), &out, DType::F32).unwrap();
        let config = DecoderConfig::read(&out).unwrap();
        let again = Decoder::init(&config, true, &device());
        let again = weights::load(again, &out, FloatDType::F32, None).unwrap();
        let apart = difference(&logits(&again, &all), &all["lora.logits"]);
        assert!(apart < 1e-3, "{model}, merged: {apart:e}");
    }
}

/// The script trains in PyTorch on the dense weights of the quantized base, and compares adapters and losses.
#[test]
fn quantized_base_trains_as_its_dense_weights() {
    for model in MODELS {
        for run in ["qlora8", "qlora4"] {
            let quantized = initial(model, run);
            // The second factors are zero.
            let dense: Decoder = quantized.clone().materialize();
            let (out, _temporary) = out(model, run);
            let base = out.join("base");
            model_files::write_model(&dense, &folder(model), &base, DType::F32).unwrap();
            let (losses, trained) = steps(quantized, model, run);
            model_files::write_adapters(&trained, &adapters(&expected(model)), &base, &out)
                .unwrap();
            let text = serde_json::to_string(&losses).unwrap();
            std::fs::write(out.join("losses.json"), text).unwrap();

            let again = Decoder::init(&DecoderConfig::read(&base).unwrap(), true, &device());
            let again = weights::load(again, &base, FloatDType::F32, None).unwrap();
            let (dense_losses, dense) = steps(adapted(again, model), model, run);
            for (step, (found, wanted)) in losses.iter().zip(&dense_losses).enumerate() {
                let apart = (found - wanted).abs() / wanted;
                assert!(
                    apart < 1e-5,
                    "{model}, {run}, loss of step {step}: {apart:e}"
                );
            }
            let file = |out: &Path| norms(&out.join("adapter_model.safetensors"));
            let found = file(&out);
            let other = out.join("dense");
            model_files::write_adapters(&dense, &adapters(&expected(model)), &base, &other)
                .unwrap();
            for (name, wanted) in file(&other) {
                let apart = (found[&name] - wanted).abs() / wanted;
                assert!(apart < 1e-4, "{model}, {run}, {name}: {apart:e}");
            }
            assert!(found.keys().all(|name| name.contains("lora_")) && !found.is_empty());
        }
    }
}
