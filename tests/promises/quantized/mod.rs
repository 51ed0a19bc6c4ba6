//! Adapters on quantized weights train as LoRA on the dequantized weights.

use std::collections::VecDeque;

use burn::module::{QLora, Quantizer};
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::Tolerance;
use burn::tensor::quantization::{Calibration, QuantValue};

use crate::common::*;

mod fine_tuning;
mod from_file;
mod layers;
mod listed;
mod moved;
mod refused;
mod shapes;

const FORMATS: [BaseFormat; 2] = [BaseFormat::Bits8, BaseFormat::Bits4];

const RATE: f64 = 0.02;
const WIDTH: usize = 16;

fn dense() -> Stack {
    Stack::init(3, WIDTH, &flex())
}

fn batches(count: usize) -> Vec<Tensor<2>> {
    randoms(count, [4, WIDTH], &flex())
}

fn lora() -> Lora {
    Lora::new(2, 3.0)
}

fn with_quantized_base<M: Module>(model: M, format: BaseFormat) -> M {
    model.apply_reparameterization(QuantizedLora::new(lora(), format))
}

fn quantized(format: BaseFormat) -> Stack {
    with_quantized_base(dense(), format)
}

fn quantizer(value: QuantValue) -> Quantizer {
    let scheme = Device::flex().settings().quantization.scheme;
    let mut quantizer = Quantizer::new(Calibration::MinMax, scheme.with_value(value));
    quantizer.set_param_group(ParamGroup::from_predicate("weight"));
    quantizer
}

/// Trains a stock loop, one batch per update.
fn stock(model: Stack, xs: &[Tensor<2>]) -> Stack {
    let loss = |model: &Stack, step: usize| model.loss(xs[step].clone());
    train_stock(model, &mut AdamConfig::new().init(), xs.len(), RATE, loss)
}

fn fused(model: Stack, config: FusedConfig) -> FusedOptimizer<Stack> {
    FusedOptimizer::new(model, optim::AdamConfig::new().init())
        .unwrap()
        .with_config_on(config, &Device::flex())
        .unwrap()
}

/// Trains fused, one batch per update.
fn train(fused: &mut FusedOptimizer<Stack>, xs: &[Tensor<2>], in_blocks: bool) {
    for x in xs {
        fused
            .step(RATE, |model| {
                loss_of_layers(&model.layers, in_blocks, x.clone())
            })
            .unwrap();
        assert_eq!(fused.last_step().updated, 6);
    }
}

#[track_caller]
fn assert_quantized(model: &Stack) {
    assert_matches!(model.layers[0].weight.base().dtype(), DType::QFloat(_));
}

/// Returns Burn's LoRA on the dequantized weights of `model`, with its factors.
fn loras_of<M: Module>(model: &M) -> M {
    // The second factor is zero, so the adapter adds nothing.
    let dequantized = model.clone().materialize();
    let mut factors = Factors {
        is_inside: false,
        values: factors_of(model)
            .into_iter()
            .map(|(_, value)| value)
            .collect(),
    };
    dequantized.apply_lora(lora()).map(&mut factors)
}

struct Factors {
    is_inside: bool,
    values: VecDeque<TensorData>,
}

impl ModuleMapper for Factors {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.is_inside |= name == "lora";
    }

    fn exit_module(&mut self, name: &str, _container_type: &str) {
        self.is_inside &= name != "lora";
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.is_inside {
            return param;
        }
        param.map(|old| {
            let value = self.values.pop_front().unwrap();
            let dtype = old.dtype();
            Tensor::from_data(value, (&old.device(), dtype)).require_grad()
        })
    }
}

fn is_factor(path: &str) -> bool {
    path.ends_with("lora.a") || path.ends_with("lora.b")
}

/// Returns the quantized values of all matrices.
fn quantized_values<M: Module>(model: &M) -> Vec<(String, TensorData)> {
    let mut quantized_values = weights(model);
    quantized_values.retain(|(path, _)| path.ends_with("lora.values"));
    assert!(!quantized_values.is_empty());
    quantized_values
}

/// Returns the adapters of all layers in order.
fn factors_of<M: Module>(model: &M) -> Vec<(String, TensorData)> {
    let mut factors = weights(model);
    factors.retain(|(path, _)| is_factor(path));
    assert!(!factors.is_empty());
    factors
}

fn factors(model: &Stack) -> Vec<(String, TensorData)> {
    let factors = factors_of(model);
    assert_eq!(factors.len(), 6);
    factors
}

#[track_caller]
fn assert_equal_factors(expected: &Stack, found: &Stack) {
    for ((path, expected), (_, found)) in factors(expected).iter().zip(&factors(found)) {
        assert_eq!(expected, found, "{path}");
    }
}

#[test]
fn quantized_base_trains_as_lora_on_dequantized_weights() {
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let xs: Vec<_> = batches(6).into_iter().map(|x| x.cast(dtype)).collect();
        for format in FORMATS {
            let initial = with_quantized_base(cast(dense(), dtype).unwrap(), format);
            let expected = stock(loras_of(&initial), &xs);
            assert_equal_factors(&expected, &stock(initial.clone(), &xs));
            for in_blocks in [false, true] {
                let adam = AdamConfig::new().init();
                let mut fused = FusedOptimizer::new(initial.clone(), adam).unwrap();
                train(&mut fused, &xs, in_blocks);
                assert_equal_factors(&expected, &fused.model());
                assert_quantized(&fused.model());
            }
        }
    }
}

/// Two steps of stock and of fused training on `device`, with `change` applied to the adapted layer.
fn assert_equal_on(
    device: &Device,
    [inputs, outputs]: [usize; 2],
    format: BaseFormat,
    change: impl Fn(Linear) -> Linear,
    trained: &[&str],
) {
    let layer = LinearConfig::new(inputs, outputs).init(device);
    let initial = change(with_quantized_base(layer, format));
    let x = Tensor::<2>::random([4, inputs], Distribution::Default, device);
    let loss = |layer: &Linear, _| layer.forward(x.clone()).tanh().square().mean();
    let adam = || AdamConfig::new().init();
    let expected = train_stock(initial.clone(), &mut adam(), 2, RATE, loss);
    let mut fused = FusedOptimizer::new(initial.clone(), adam()).unwrap();
    train_fused(&mut fused, 2, RATE, loss);
    assert_equal_weights(&expected, &fused.model());
    let is_trained = |path: &str| trained.iter().any(|end| path.ends_with(end));
    assert_changed(&initial, &fused.model(), is_trained);
}

/// The rows of a classifier's head end within a word of packed values. (Debug builds of CubeCL read no values whose bytes are not a
/// multiple of 8.)
fn quantized_head_trains_and_loads_on_any_device(device: &Device) {
    for (shape, format) in product([[64, 10], [32, 16]], FORMATS) {
        assert_equal_on(device, shape, format, |layer| layer, &[".a", ".b"]);
        let init = |device: &Device| {
            let layer = LinearConfig::new(shape[0], shape[1]).init(device);
            with_quantized_base::<Linear>(layer, format)
        };
        let fuse = |model| FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
        // Quantized values have another layout on each kind of device.
        for [from, to] in [[device, &flex()], [&flex(), device]] {
            let folder = tempfile::tempdir().unwrap();
            let checkpoint = Checkpoint::at(folder.path().join("checkpoint"));
            let saved = fuse(init(from));
            checkpoint.save(&saved, &Progress::new(0)).unwrap();
            let mut loaded = fuse(init(to));
            checkpoint.load::<()>(&mut loaded).unwrap();
            let models = [saved.model(), loaded.model()];
            let [before, after] = models
                .each_ref()
                .map(|model| model.weight.val().into_data());
            before.assert_approx_eq::<f32>(&after, Tolerance::default());
            let [before, after] = models.each_ref().map(factors_of);
            assert_eq!(before, after);
            let x = Tensor::<2>::ones([2, shape[0]], to);
            loaded.step(RATE, |layer| layer.forward(x).mean()).unwrap();
        }
    }
}

on_every_backend!(quantized_head_trains_and_loads_on_any_device);

/// A model that is one parameter.
#[test]
fn quantized_parameter_alone_trains() {
    let weight = Param::from_tensor(Tensor::<2>::random([4, 6], Distribution::Default, &flex()));
    let weight = with_quantized_base(weight, BaseFormat::Bits4);
    let message = panic_of(|| with_quantized_base(weight.clone(), BaseFormat::Bits4));
    assert_says(&message, "already quantized");
    let mut fused = FusedOptimizer::new(weight, AdamConfig::new().init()).unwrap();
    fused
        .step(RATE, |weight| weight.val().square().sum())
        .unwrap();
    assert_eq!(fused.last_step().updated, 2);
}

/// Less than a group, one group and a part, several groups and a part, and a group without one weight.
const ODD: [[usize; 2]; 5] = [[1, 1], [5, 13], [7, 11], [3, 129], [9, 7]];

#[test]
fn quantized_base_trains_in_any_shape_and_on_any_backend() {
    let frozen =
        |layer: Linear| layer.set_require_grad_group(ParamGroup::from_predicate("lora.a"), false);
    for device in cpus() {
        for device in [device.clone(), device.gradient_checkpointing()] {
            assert_equal_on(&device, [16, 12], BaseFormat::Bits4, frozen, &[".b"]);
        }
    }
    let device = Device::flex().autodiff();
    for shape in ODD {
        for format in FORMATS {
            assert_equal_on(&device, shape, format, |layer| layer, &[".a", ".b"]);
        }
    }
}

#[test]
fn quantized_values_survive_any_type() {
    let device = Device::flex().autodiff();
    for shape @ [inputs, outputs] in ODD {
        for format in FORMATS {
            let init = || {
                let layer = LinearConfig::new(inputs, outputs).init(&device);
                with_quantized_base(layer, format)
            };
            let layer: Linear = init();
            for dtype in [
                FloatDType::BF16,
                FloatDType::F16,
                FloatDType::F64,
                FloatDType::F32,
            ] {
                // Also from a model whose quantized values were unfrozen.
                for saved in [layer.clone(), layer.clone().unfreeze()] {
                    let record = cast(saved, dtype).unwrap().into_record();
                    for next in [FloatDType::F32, FloatDType::BF16] {
                        let loaded = load_record_in(init(), record.clone(), next).unwrap();
                        assert_eq!(
                            quantized_values(&loaded),
                            quantized_values(&layer),
                            "{shape:?} {dtype:?} {next:?}"
                        );
                        let value = loaded.weight.val();
                        assert_eq!(value.dtype(), DType::from(next));
                        let x = Tensor::<2>::ones([2, inputs], &device).cast(next);
                        let optimizer = AdamConfig::new().init();
                        let error = FusedOptimizer::new(loaded.clone().unfreeze(), optimizer);
                        let error = error.expect_err("quantized values are not trained");
                        assert!(matches!(error, FusedError::QuantizedInTraining { .. }));
                        let mut fused =
                            FusedOptimizer::new(loaded, AdamConfig::new().init()).unwrap();
                        fused
                            .step(RATE, |model| model.forward(x).square().mean())
                            .unwrap();
                        let error = fused.change_model(Linear::unfreeze).unwrap_err();
                        assert!(matches!(error, FusedError::QuantizedInTraining { .. }));
                        assert_eq!(fused.last_step().updated, 2);
                        assert_eq!(quantized_values(&fused.model()), quantized_values(&layer));
                    }
                }
            }
        }
    }
}

/// The first element of a shape stub is NaN, and so are all others.
#[test]
fn dense_weight_with_nan_replaces_quantized_values() {
    let mut model = dense();
    let weight = model.layers[0].weight.clone();
    model.layers[0].weight = weight.map(|weight| {
        let nan = Tensor::full([1, 1], f32::NAN, &weight.device());
        weight.slice_assign([0..1, 0..1], nan)
    });
    let record = model.clone().into_record().allow_partial(true);
    let loaded = quantized(BaseFormat::Bits4).load_record(record);
    let of = |model: &Stack| model.layers[0].weight.val().into_data();
    assert_eq!(of(&loaded).as_bytes(), of(&model).as_bytes());
}

#[test]
fn estimates_count_bytes_of_quantized_values() {
    let adamw = optim::AdamWConfig::new().init();
    for (format, row) in FORMATS.into_iter().zip([68, 36]) {
        let estimate = MemoryEstimate::new(&quantized(format), &adamw);
        // Matrices of 16 x 16, biases of 16, factors of rank 2.
        let factors = 3 * 2 * 2 * 16 * 4;
        assert_eq!(estimate.parameters, 3 * (4 * row + 16 * 4) + factors);
        assert_eq!(estimate.gradients, factors);
        assert_eq!(estimate.optimizer_state, 2 * factors);
    }
}

#[test]
fn layers_in_columns_are_quantized_saved_and_merged() {
    let device = Device::flex().autodiff();
    let columns = LinearConfig::new(8, 24).with_layout(LinearLayout::Col);
    let init = || with_quantized_base(columns.init(&device), BaseFormat::Bits8);
    let layer = init();
    let loaded = copy(&layer, init);
    assert_equal_weights(&layer, &loaded);
    let weight = layer.weight.val().into_data();
    assert_eq!(loaded.weight.val().into_data(), weight);
    let stock = copy(&layer.materialize(), || columns.init(&device));
    assert_eq!(stock.weight.val().into_data(), weight);
}

/// A layer, and a matrix without elements.
#[derive(Module, Debug)]
struct WithNothing {
    layer: Linear,
    nothing: Param<Tensor<2>>,
}

impl WithNothing {
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let nothing = self.nothing.val().sum();
        self.layer.forward(x).powi_scalar(2).mean() + nothing
    }
}

/// (Burn's matrix product on `ndarray` divides by the number of elements.)
#[test]
fn matrix_without_elements_is_quantized_and_trained() {
    let device = Device::flex().autodiff();
    for (format, dtype) in FORMATS.into_iter().zip([FloatDType::F32, FloatDType::F64]) {
        for shape in [[8, 0], [0, 8], [0, 0]] {
            let dense = WithNothing {
                layer: LinearConfig::new(8, 8).init(&device),
                nothing: Param::from_tensor(Tensor::zeros(shape, &device)),
            };
            let dense = cast(dense, dtype).unwrap();
            let model = with_quantized_base(dense, format);
            let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
            let x = Tensor::<2>::ones([4, 8], &device).cast(dtype);
            let step = |model: &WithNothing| model.loss(x.clone());
            let losses = [(); 2].map(|()| fused.step(RATE, step).unwrap().into_scalar::<f64>());
            assert!(losses[1] < losses[0]);
            assert_eq!(fused.model().materialize().nothing.dims(), shape);
        }
    }
}
