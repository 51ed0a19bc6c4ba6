//! Models of Burn's layers are loaded from a file, fine-tuned with adapters, and exported, as `docs/fine-tuning.md` says.

use std::path::{Path, PathBuf};

use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::store::{
    BurnToPyTorchAdapter, KeyRemapper, ModuleRecord, ModuleSnapshot, ModuleStore,
    PyTorchToBurnAdapter, SafetensorsStore,
};
use burn::tensor::Tolerance;

use crate::common::*;

const RATE: f64 = 0.02;
const TOKENS: usize = 20;
const WIDTH: usize = 16;

fn tokens(device: &Device) -> Tensor<2, Int> {
    Tensor::arange(0..12, device).reshape([2, 6])
}

fn encoder() -> TransformerEncoder {
    TransformerEncoderConfig::new(WIDTH, 40, 2, 2)
        .with_dropout(0.0)
        .init(&flex())
}

fn embedding(tokens: usize) -> Embedding {
    EmbeddingConfig::new(tokens, WIDTH).init(&flex())
}

#[derive(Module, Debug)]
struct Embeddings {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
}

/// A BERT with a classifier.
#[derive(Module, Debug)]
struct Bert {
    embeddings: Embeddings,
    encoder: TransformerEncoder,
    pooler: Linear,
    classifier: Linear,
}

impl Bert {
    fn init() -> Self {
        Self {
            embeddings: Embeddings {
                words: embedding(TOKENS),
                positions: embedding(6),
                types: embedding(2),
                norm: LayerNormConfig::new(WIDTH).init(&flex()),
            },
            encoder: encoder(),
            pooler: LinearConfig::new(WIDTH, WIDTH).init(&flex()),
            classifier: LinearConfig::new(WIDTH, 3).init(&flex()),
        }
    }

    fn loss(&self) -> Tensor<1> {
        let (tokens, it) = (tokens(&self.devices()[0]), &self.embeddings);
        let positions = Tensor::<1, Int>::arange(0..6, &tokens.device()).unsqueeze();
        let types = it.types.forward(tokens.zeros_like());
        let x = it.words.forward(tokens) + it.positions.forward(positions) + types;
        let x = it.norm.forward(x);
        let x = self.encoder.forward(TransformerEncoderInput::new(x));
        let first: Tensor<2> = x.narrow(1, 0, 1).squeeze_dim(1);
        let pooled = self.pooler.forward(first).tanh();
        self.classifier.forward(pooled).square().mean()
    }
}

/// A decoder: layers with a mask of later tokens.
#[derive(Module, Debug)]
struct Decoder {
    embedding: Embedding,
    decoder: TransformerEncoder,
    head: Linear,
}

impl Decoder {
    fn init() -> Self {
        Self {
            embedding: embedding(TOKENS),
            decoder: encoder(),
            head: LinearConfig::new(WIDTH, TOKENS).init(&flex()),
        }
    }

    fn loss(&self) -> Tensor<1> {
        let tokens = tokens(&self.devices()[0]);
        let mask = generate_autoregressive_mask(2, 6, &tokens.device());
        let x = TransformerEncoderInput::new(self.embedding.forward(tokens)).mask_attn(mask);
        let logits = self.head.forward(self.decoder.forward(x));
        logits.square().mean()
    }
}

/// The names of a model in a file, and in its module.
struct Names {
    to_file: KeyRemapper,
    to_module: KeyRemapper,
}

impl Names {
    fn bert() -> Self {
        let names = WeightNames::bert();
        Self {
            to_file: names.to_file(),
            to_module: names.to_module(),
        }
    }

    fn decoder() -> Self {
        let remapper = |from, to| KeyRemapper::from_pattern_iter([(from, to)]).unwrap();
        Self {
            to_file: remapper(r"^decoder\.layers\.(\d+)\.", "blocks.${1}."),
            to_module: remapper(r"^blocks\.(\d+)\.", "decoder.layers.${1}."),
        }
    }

    fn save<M: Module>(&self, model: &M, path: &Path) -> Vec<String> {
        let store = SafetensorsStore::from_file(path).with_to_adapter(BurnToPyTorchAdapter);
        let mut store = store.remap(self.to_file.clone());
        model.save_into(&mut store).unwrap();
        SafetensorsStore::from_file(path).keys().unwrap()
    }

    fn store(&self, path: PathBuf) -> SafetensorsStore {
        let store = SafetensorsStore::from_file(path).with_from_adapter(PyTorchToBurnAdapter);
        store.remap(self.to_module.clone())
    }
}

fn is_factor(path: &str) -> bool {
    path.ends_with("lora.a") || path.ends_with("lora.b")
}

fn fine_tunes<M: Module>(names: Names, init: fn() -> M, loss: fn(&M) -> Tensor<1>, key: &str) {
    let folder = tempfile::tempdir().unwrap();
    let [pretrained, trained] = ["pretrained", "trained"].map(|name| folder.path().join(name));
    let keys = names.save(&init(), &pretrained);
    assert!(keys.iter().any(|it| it == key), "{keys:?}");
    let lora = || {
        let group = ParamGroup::from_any_predicates(vec!["query", "value"]);
        Lora::new(2, 4.0).set_param_group(group)
    };
    let of = |model: &M| loss(&model.valid()).into_scalar::<f32>();
    for format in [None, Some(BaseFormat::Bits8), Some(BaseFormat::Bits4)] {
        let load = || {
            let (store, dtype) = (|path| names.store(path), FloatDType::F32);
            let (model, applied) = match format.map(|format| QuantizedLora::new(lora(), format)) {
                Some(lora) => load_quantized_from_store(init(), &pretrained, store, dtype, lora),
                None => load_from_store(init(), &pretrained, store, dtype)
                    .map(|(model, applied)| (model.apply_lora(lora()), applied)),
            }
            .unwrap();
            assert!(applied.missing.is_empty() && applied.unused.is_empty());
            model
        };
        let initial = load();
        let adam = || AdamConfig::new().init();
        let loss_of = |model: &M, _| loss(model);
        let expected = train_stock(initial.clone(), &mut adam(), 2, RATE, loss_of);
        let mut fused = FusedOptimizer::new(initial.clone(), adam()).unwrap();
        train_fused(&mut fused, 2, RATE, loss_of);
        let found = fused.model();
        assert_changed(&initial, &found, is_factor);
        for ((path, expected), (_, found)) in weights(&expected).iter().zip(&weights(&found)) {
            if is_factor(path) {
                found.assert_approx_eq::<f32>(expected, Tolerance::absolute(1e-5));
            }
        }
        // The merged weights, in a file with the names of the first one.
        let merged = found.valid().materialize();
        assert_eq!(names.save(&merged, &trained), keys);
        let exported = load_from_store(init(), &trained, |it| names.store(it), FloatDType::F32);
        let (exported, _) = exported.unwrap();
        assert_eq!(of(&exported), of(&merged));
        assert_eq!(of(&merged), of(&found));
        std::fs::remove_file(&trained).unwrap();
        // The adapters alone.
        let factors = ParamGroup::from_any_predicates(vec!["lora.a", "lora.b"]);
        let bytes = found.clone().into_record_group(factors).into_bytes();
        let record = ModuleRecord::from_bytes(bytes.unwrap()).unwrap();
        let adapted = load().load_record(record.allow_partial(true));
        assert_eq!(of(&adapted), of(&found));
    }
}

#[test]
fn bert_from_file_trains_adapters_and_is_exported() {
    let key = "encoder.layer.1.attention.output.LayerNorm.weight";
    fine_tunes(Names::bert(), Bert::init, Bert::loss, key);
}

#[test]
fn decoder_from_file_trains_adapters_and_is_exported() {
    let (names, key) = (Names::decoder(), "blocks.1.pwff.linear_outer.weight");
    fine_tunes(names, Decoder::init, Decoder::loss, key);
}
