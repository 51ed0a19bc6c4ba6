//! A quantized weight has its dense shape everywhere.

use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::{
    PositionWiseFeedForward, PositionWiseFeedForwardConfig, TransformerDecoder,
    TransformerDecoderConfig, TransformerDecoderInput, TransformerEncoder,
    TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::tensor::Shape;

use super::*;

const TOKENS: usize = 20;
const MODEL: usize = 16;

fn tokens(device: &Device) -> Tensor<2, Int> {
    Tensor::arange(0..12, device).reshape([2, 6])
}

/// A classifier as BERT: its layers are Burn's own.
#[derive(Module, Debug)]
struct Classifier {
    embedding: Embedding,
    encoder: TransformerEncoder,
    head: Linear,
}

impl Classifier {
    fn init(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(TOKENS, MODEL).init(device),
            encoder: TransformerEncoderConfig::new(MODEL, 40, 2, 2)
                .with_dropout(0.0)
                .init(device),
            head: LinearConfig::new(MODEL, 3).init(device),
        }
    }

    fn loss(&self) -> Tensor<1> {
        let x = self.embedding.forward(tokens(&self.devices()[0]));
        let x = self.encoder.forward(TransformerEncoderInput::new(x));
        let pooled: Tensor<2> = x.mean_dim(1).squeeze_dim(1);
        self.head.forward(pooled).square().mean()
    }
}

/// A decoder with a mask.
#[derive(Module, Debug)]
struct Decoder {
    embedding: Embedding,
    decoder: TransformerDecoder,
    head: Linear,
}

impl Decoder {
    fn init(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(TOKENS, MODEL).init(device),
            decoder: TransformerDecoderConfig::new(MODEL, 40, 2, 2)
                .with_dropout(0.0)
                .init(device),
            head: LinearConfig::new(MODEL, TOKENS).init(device),
        }
    }

    fn loss(&self) -> Tensor<1> {
        let device = &self.devices()[0];
        let x = self.embedding.forward(tokens(device));
        let mask = generate_autoregressive_mask(2, 6, device);
        let input = TransformerDecoderInput::new(x.clone(), x).target_mask_attn(mask);
        self.head
            .forward(self.decoder.forward(input))
            .square()
            .mean()
    }
}

fn shapes<M: Module>(model: &M) -> Vec<(String, Shape)> {
    let shape = |(path, value): (String, TensorData)| (path, value.shape().clone());
    let mut shapes: Vec<_> = weights(model).into_iter().map(shape).collect();
    shapes.retain(|(path, _)| !path.ends_with("lora.values"));
    shapes
}

/// Trains adapters and an unfrozen head, fused and in stock Burn.
fn trains_as_stock<M: Module>(dense: M, loss: fn(&M) -> Tensor<1>) {
    let loras = dense.clone().apply_lora(lora());
    for format in FORMATS {
        let head = || ParamGroup::from_path("head.bias");
        let initial = with_quantized_base(dense.clone(), format).unfreeze_group(head());
        assert_eq!(initial.num_params(), loras.num_params());
        assert_eq!(shapes(&initial), shapes(&loras));
        let adam = || AdamConfig::new().init();
        let loss_of = |model: &M, _| loss(model);
        let expected = train_stock(initial.clone(), &mut adam(), 2, RATE, loss_of);
        let mut fused = FusedOptimizer::new_ok(initial.clone(), adam());
        train_fused(&mut fused, 2, RATE, loss_of);
        let trained = fused.model();
        let is_trained = |path: &str| is_factor(path) || path == "head.bias";
        assert_changed(&initial, &trained, is_trained);
        for ((path, expected), (_, found)) in weights(&expected).iter().zip(&weights(&trained)) {
            found.assert_approx_eq::<f32>(expected, burn::tensor::Tolerance::absolute(1e-5));
            if path.ends_with("lora.values") {
                assert_eq!(expected, found);
            }
        }
        // A record of it, loaded into another model, has the same results.
        let loaded =
            with_quantized_base(dense.clone(), format).load_record(trained.clone().into_record());
        let of = |model: &M| loss(&model.valid()).into_scalar::<f32>();
        assert_eq!(of(&loaded), of(&trained));
        assert_eq!(quantized_values(&loaded), quantized_values(&initial));
        let merged = trained.materialize();
        assert_eq!(merged.num_params(), dense.num_params());
        let stock = dense.clone().load_record(merged.into_record());
        assert_eq!(of(&stock), of(&loaded));
    }
}

#[test]
fn quantized_encoder_and_decoder_of_burn_train_as_stock() {
    let device = Device::flex().autodiff();
    trains_as_stock(Classifier::init(&device), Classifier::loss);
    trains_as_stock(Decoder::init(&device), Decoder::loss);
}

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
            // Burn's `fork` makes floats of a placeholder, and loading makes a placeholder of them.
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
    assert_eq!(
        loaded.weight.val().into_data(),
        other.weight.val().into_data()
    );
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
