//! Fused training equals stock Burn bit for bit, for every kind of module.

use backburn::FusedOptimizer;
use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Initializer, Lora, Module, Param, ParamGroup, ParamId};
use burn::nn::conv::{Conv2d, Conv2dConfig, Conv3d, Conv3dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig,
    Linear, LinearConfig, LinearLayout, Lstm, LstmConfig, Relu,
};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, SgdConfig};
use burn::tensor::{Bool, DType, Device, Distribution, Int, Tensor};

use crate::backends::on_every_backend;
use crate::compare::*;

const STEPS: usize = 4;
const RATE: f64 = 1e-2;

/// Trains `STEPS` steps both ways with AdamW, from the same record.
fn train_both<M: Module>(init: impl Fn() -> M, loss: impl Fn(&M, usize) -> Tensor<1>) -> (M, M, M) {
    let optimizer = || AdamWConfig::new().init();
    let initial = init();

    let stock = copy(&initial, &init);
    let stock = train_stock(stock, &mut optimizer(), STEPS, RATE, &loss);

    let mut fused = FusedOptimizer::new(copy(&initial, &init), optimizer());
    train_fused(&mut fused, STEPS, RATE, &loss);
    (initial, stock, fused.model())
}

/// Asserts that both ways give the same bits and change the parameters `trained` names.
fn assert_fused_equals_stock<M: Module>(
    init: impl Fn() -> M,
    loss: impl Fn(&M, usize) -> Tensor<1>,
    trained: impl Fn(&str) -> bool,
) {
    let (initial, stock, fused) = train_both(init, loss);
    assert_equal_weights(&stock, &fused);
    assert_changed(&initial, &fused, trained);
}

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Default, device)
}

fn square_mean<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    x.powi_scalar(2).mean()
}

fn token_ids(device: &Device) -> Tensor<2, Int> {
    Tensor::from_data([[1, 2, 3, 0], [4, 0, 5, 2]], device)
}

fn weights_tied_between_embedding_and_output(device: &Device) {
    #[derive(Module, Debug)]
    struct Tied {
        embedding: Embedding,
        hidden: Linear,
    }

    assert_fused_equals_stock(
        || Tied {
            embedding: EmbeddingConfig::new(7, 6).init(device),
            hidden: LinearConfig::new(6, 6).init(device),
        },
        |model, _| {
            let x = model.embedding.forward(token_ids(device));
            let x = model.hidden.forward(x);
            let logits = x.matmul(model.embedding.weight.val().transpose().unsqueeze());
            CrossEntropyLossConfig::new()
                .init(device)
                .forward(logits.reshape([8, 7]), token_ids(device).reshape([8]))
        },
        |_| true,
    );
}

fn recurrent_weights_within_rounding(device: &Device) {
    #[derive(Module, Debug)]
    struct Recurrent {
        embedding: Linear,
        lstm: Lstm,
        head: Linear,
    }

    let x = random([2, 5, 3], device);
    let (_, stock, fused) = train_both(
        || Recurrent {
            embedding: LinearConfig::new(3, 4).init(device),
            lstm: LstmConfig::new(4, 4, true).init(device),
            head: LinearConfig::new(4, 2).init(device),
        },
        |model, _| {
            let (x, _) = model.lstm.forward(model.embedding.forward(x.clone()), None);
            square_mean(model.head.forward(x))
        },
    );
    // The gradients of a recurrent weight are summed in another order.
    for ((path, stock), (_, fused)) in weights(&stock).iter().zip(&weights(&fused)) {
        for (stock, fused) in stock.iter::<f32>().zip(fused.iter::<f32>()) {
            assert!(
                (stock - fused).abs() <= 1e-6,
                "`{path}`: {stock} and {fused}"
            );
        }
    }
}

#[derive(Module, Debug)]
struct TwoHeads {
    body: Linear,
    first: Linear,
    second: Linear,
}

impl TwoHeads {
    fn init(device: &Device) -> Self {
        Self {
            body: LinearConfig::new(3, 4).init(device),
            first: LinearConfig::new(4, 2).init(device),
            second: LinearConfig::new(4, 2).init(device),
        }
    }
}

fn weights_not_used_in_the_loss(device: &Device) {
    let x = random([5, 3], device);
    assert_fused_equals_stock(
        || TwoHeads::init(device),
        |model, _| {
            let x = model.body.forward(x.clone());
            let _read_but_not_in_the_loss = model.second.forward(x.clone());
            square_mean(model.first.forward(x))
        },
        |path| !path.starts_with("second"),
    );
}

fn weights_used_in_some_steps_only(device: &Device) {
    let x = random([5, 3], device);
    assert_fused_equals_stock(
        || TwoHeads::init(device),
        |model, step| {
            let x = model.body.forward(x.clone());
            let head = if step % 2 == 0 {
                &model.first
            } else {
                &model.second
            };
            square_mean(head.forward(x))
        },
        |_| true,
    );
}

fn frozen_weights(device: &Device) {
    let x = random([5, 3], device);
    assert_fused_equals_stock(
        || {
            let group = ParamGroup::from_predicate("first");
            TwoHeads::init(device).freeze_group(group)
        },
        |model, _| {
            let x = model.body.forward(x.clone());
            square_mean(model.first.forward(x.clone()) - model.second.forward(x))
        },
        |path| !path.starts_with("first"),
    );
}

fn weights_frozen_and_thawed_between_steps(device: &Device) {
    let x = random([5, 3], device);
    let loss = |model: &TwoHeads, _: usize| {
        let x = model.body.forward(x.clone());
        square_mean(model.first.forward(x.clone()) - model.second.forward(x))
    };
    let freeze = |model: TwoHeads| model.freeze_group(ParamGroup::from_predicate("body"));
    let optimizer = || AdamWConfig::new().init();
    let initial = TwoHeads::init(device);

    let mut stock_optimizer = optimizer();
    let stock = copy(&initial, || TwoHeads::init(device));
    let stock = train_stock(stock, &mut stock_optimizer, 2, RATE, loss);
    let stock = train_stock(freeze(stock), &mut stock_optimizer, 2, RATE, loss);
    let stock = train_stock(stock.unfreeze(), &mut stock_optimizer, 2, RATE, loss);

    let fused = copy(&initial, || TwoHeads::init(device));
    let mut fused = FusedOptimizer::new(fused, optimizer());
    train_fused(&mut fused, 2, RATE, loss);
    let before = fused.model();
    fused.map(freeze);
    assert_eq!((fused.tapped(), fused.frozen()), (4, 2));
    train_fused(&mut fused, 2, RATE, loss);
    assert_changed(&before, &fused.model(), |path| !path.starts_with("body"));
    fused.map(TwoHeads::unfreeze);
    train_fused(&mut fused, 2, RATE, loss);

    assert_equal_weights(&stock, &fused.model());
}

fn lora_adapters_on_a_frozen_base(device: &Device) {
    let x = random([5, 3], device);
    assert_fused_equals_stock(
        || TwoHeads::init(device).apply_lora(Lora::new(2, 4.0)),
        |model, _| {
            let x = model.body.forward(x.clone());
            square_mean(model.first.forward(x.clone()) - model.second.forward(x) + 1.0)
        },
        |path| path.contains(".lora."),
    );
}

fn lora_adapters_on_a_base_in_training(device: &Device) {
    let x = random([5, 3], device);
    let init = || {
        TwoHeads::init(device)
            .apply_lora(Lora::new(2, 4.0))
            .unfreeze()
    };
    let fused = FusedOptimizer::new(init(), SgdConfig::new().init());
    assert_eq!((fused.tapped(), fused.left(), fused.frozen()), (9, 3, 0));

    assert_fused_equals_stock(
        init,
        |model, _| {
            let x = model.body.forward(x.clone());
            square_mean(model.first.forward(x.clone()) - model.second.forward(x) + 1.0)
        },
        |_| true,
    );
}

#[derive(Module, Debug)]
struct Convolutional {
    conv: Conv2d,
    norm: BatchNorm,
    head: Linear,
}

impl Convolutional {
    fn init(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([1, 3], [3, 3]).init(device),
            norm: BatchNormConfig::new(3).init(device),
            head: LinearConfig::new(12, 2).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = Relu::new().forward(self.norm.forward(self.conv.forward(x)));
        self.head.forward(x.flatten(1, 3))
    }
}

fn batch_norm_with_running_statistics(device: &Device) {
    let x = random([6, 1, 4, 4], device);
    assert_fused_equals_stock(
        || Convolutional::init(device),
        |model, step| square_mean(model.forward(x.clone() + step as f32)),
        |_| true,
    );
}

fn running_statistics_reach_the_validation_model(device: &Device) {
    let x = random([6, 1, 4, 4], device);
    let loss = |model: &Convolutional, _: usize| square_mean(model.forward(x.clone()));
    let initial = Convolutional::init(device);

    let stock = copy(&initial, || Convolutional::init(device));
    let stock = train_stock(stock, &mut AdamWConfig::new().init(), STEPS, RATE, loss);
    let fused = copy(&initial, || Convolutional::init(device));
    let mut fused = FusedOptimizer::new(fused, AdamWConfig::new().init());
    train_fused(&mut fused, STEPS, RATE, loss);

    let x = x.clone().inner();
    let expected = stock.valid().forward(x.clone()).into_data();
    assert_eq!(fused.valid().forward(x).into_data(), expected);
}

fn lazily_initialized_parameters(device: &Device) {
    #[derive(Module, Debug)]
    struct Lazy {
        weight: Param<Tensor<2>>,
        linear: Linear,
    }

    let init = || Lazy {
        weight: Initializer::Uniform {
            min: -1.0,
            max: 1.0,
        }
        .init([3, 3], device),
        linear: LinearConfig::new(3, 2).init(device),
    };
    let lazy = init();
    assert!(!lazy.weight.is_initialized());
    let mut fused = FusedOptimizer::new(lazy, AdamWConfig::new().init());
    let initialized = fused.model();

    let x = random([4, 3], device);
    let loss = |model: &Lazy, _: usize| {
        square_mean(model.linear.forward(x.clone().matmul(model.weight.val())))
    };
    let stock = copy(&initialized, init);
    let stock = train_stock(stock, &mut AdamWConfig::new().init(), STEPS, RATE, loss);
    train_fused(&mut fused, STEPS, RATE, loss);
    assert_equal_weights(&stock, &fused.model());
}

fn weights_in_column_layout(device: &Device) {
    let x = random([4, 3], device);
    assert_fused_equals_stock(
        || {
            LinearConfig::new(3, 5)
                .with_layout(LinearLayout::Col)
                .init(device)
        },
        |model, _| square_mean(model.forward(x.clone())),
        |_| true,
    );
}

#[derive(Module, Debug)]
enum Activation {
    Gelu(Gelu),
    Scaled(Param<Tensor<1>>),
}

#[derive(Module, Debug)]
struct Containers {
    optional: Option<Linear>,
    absent: Option<Linear>,
    list: Vec<Linear>,
    array: [Linear; 2],
    tuple: (Linear, LayerNorm),
    activations: Vec<Activation>,
    positions: Param<Tensor<1, Int>>,
    mask: Param<Tensor<2, Bool>>,
    constant: Tensor<2>,
    #[module(skip)]
    scale: f32,
}

fn option_vec_array_tuple_enum_int_and_bool_fields(device: &Device) {
    let linear = || LinearConfig::new(3, 3).init(device);
    let x = random([4, 3], device);
    let constant = random([4, 3], device);
    assert_fused_equals_stock(
        || Containers {
            optional: Some(linear()),
            absent: None,
            list: (0..3).map(|_| linear()).collect(),
            array: [linear(), linear()],
            tuple: (linear(), LayerNormConfig::new(3).init(device)),
            activations: vec![
                Activation::Gelu(Gelu::new()),
                Activation::Scaled(Param::from_data([0.5, 1.0, 2.0], device)),
            ],
            positions: Param::initialized(ParamId::new(), Tensor::from_data([2, 0, 1], device)),
            mask: Param::initialized(
                ParamId::new(),
                Tensor::from_data([[true, false, false]], device),
            ),
            constant: constant.clone(),
            scale: 0.5,
        },
        |model, _| {
            let mut x = x.clone().select(1, model.positions.val());
            x = x.mask_fill(model.mask.val().expand([4, 3]), 0.25) + model.constant.clone();
            for linear in model.optional.iter().chain(&model.absent) {
                x = linear.forward(x);
            }
            for linear in model.list.iter().chain(&model.array) {
                x = linear.forward(x.clone()) + x;
            }
            x = model.tuple.1.forward(model.tuple.0.forward(x));
            for activation in &model.activations {
                x = match activation {
                    Activation::Gelu(gelu) => gelu.forward(x),
                    Activation::Scaled(scale) => x * scale.val().unsqueeze(),
                };
            }
            square_mean(x * model.scale)
        },
        |_| true,
    );
}

fn parameters_of_rank_one_to_five(device: &Device) {
    #[derive(Module, Debug)]
    struct Ranks {
        one: Param<Tensor<1>>,
        two: Param<Tensor<2>>,
        three: Param<Tensor<3>>,
        four: Param<Tensor<4>>,
        conv: Conv3d,
    }

    let x = random([2, 1, 2, 2, 2], device);
    assert_fused_equals_stock(
        || Ranks {
            one: Param::from_tensor(random([2], device)),
            two: Param::from_tensor(random([2, 2], device)),
            three: Param::from_tensor(random([2, 2, 2], device)),
            four: Param::from_tensor(random([1, 2, 2, 2], device)),
            conv: Conv3dConfig::new([1, 1], [1, 1, 1]).init(device),
        },
        |model, _| {
            let x = model.conv.forward(x.clone()) * model.four.val().unsqueeze();
            let x = x * model.three.val().unsqueeze() + model.two.val().unsqueeze();
            square_mean(x * model.one.val().unsqueeze())
        },
        |_| true,
    );
}

fn several_forward_passes_in_one_step(device: &Device) {
    let (x, y) = (random([5, 3], device), random([5, 3], device));
    assert_fused_equals_stock(
        || TwoHeads::init(device),
        |model, _| {
            let of = |x: &Tensor<2>, head: &Linear| {
                square_mean(head.forward(model.body.forward(x.clone())))
            };
            of(&x, &model.first) + of(&y, &model.second)
        },
        |_| true,
    );
}

fn a_part_without_gradient_inside_the_step(device: &Device) {
    let x = random([5, 3], device);
    assert_fused_equals_stock(
        || TwoHeads::init(device),
        |model, _| {
            let judge = model.first.clone().no_grad();
            let target = model
                .valid()
                .second
                .forward(model.body.forward(x.clone()).inner());
            let judged = judge.forward(model.body.forward(x.clone()));
            square_mean(judged - Tensor::from_inner(target))
        },
        |path| path.starts_with("body"),
    );
}

fn transformer_encoder(device: &Device) {
    #[derive(Module, Debug)]
    struct Classifier {
        embedding: Embedding,
        encoder: TransformerEncoder,
        head: Linear,
    }

    assert_fused_equals_stock(
        || Classifier {
            embedding: EmbeddingConfig::new(7, 8).init(device),
            encoder: TransformerEncoderConfig::new(8, 16, 2, 2)
                .with_dropout(0.0)
                .with_norm_first(true)
                .init(device),
            head: LinearConfig::new(8, 2).init(device),
        },
        |model, _| {
            let x = model.embedding.forward(token_ids(device));
            let x = model.encoder.forward(TransformerEncoderInput::new(x));
            square_mean(model.head.forward(x))
        },
        |_| true,
    );
}

fn gradient_checkpointing(device: &Device) {
    let device = &device.clone().gradient_checkpointing();
    let x = random([6, 1, 4, 4], device);
    assert_fused_equals_stock(
        || Convolutional::init(device),
        |model, _| square_mean(Gelu::new().forward(model.forward(x.clone()))),
        |_| true,
    );
}

/// A model of one dtype, trained both ways.
fn assert_fused_equals_stock_in(device: &Device, dtype: DType) {
    let weight = |shape: [usize; 2]| {
        let value = Tensor::random(shape, Distribution::Default, (device, dtype));
        Param::from_tensor(value)
    };
    #[derive(Module, Debug)]
    struct Weights {
        first: Param<Tensor<2>>,
        second: Param<Tensor<2>>,
    }

    let x = random([5, 3], device).cast(dtype);
    let init = || Weights {
        first: weight([3, 4]),
        second: weight([4, 2]),
    };
    assert_eq!(init().first.val().dtype(), dtype);
    assert_fused_equals_stock(
        init,
        |model, _| {
            let x = x.clone().matmul(model.first.val()).tanh();
            square_mean(x.matmul(model.second.val()))
        },
        |_| true,
    );
}

fn models_in_f64(device: &Device) {
    assert_fused_equals_stock_in(device, DType::F64);
}

#[test]
fn models_in_f16() {
    assert_fused_equals_stock_in(&Device::flex().autodiff(), DType::F16);
}

#[test]
fn models_in_bf16() {
    assert_fused_equals_stock_in(&Device::flex().autodiff(), DType::BF16);
}

fn groups_with_their_own_optimizer_and_learning_rate(device: &Device) {
    let x = random([5, 3], device);
    let loss = |model: &TwoHeads| {
        let x = model.body.forward(x.clone());
        square_mean(model.first.forward(x.clone()) - model.second.forward(x))
    };
    let optimizer = || {
        let group = ParamGroup::from_predicate("first");
        AdamWConfig::new()
            .init()
            .with_group(group, SgdConfig::new().build(), None)
    };
    let rate = || {
        let group = ParamGroup::from_predicate("body");
        ModuleLrScheduler::new(ConstantLr::new(1e-2))
            .with_group(group, ConstantLr::new(1e-3))
            .step()
    };
    let initial = TwoHeads::init(device);

    let mut stock = copy(&initial, || TwoHeads::init(device));
    let mut stock_optimizer = optimizer();
    let fused = copy(&initial, || TwoHeads::init(device));
    let mut fused = FusedOptimizer::new(fused, optimizer());
    for _ in 0..STEPS {
        let gradients = GradientsParams::from_grads(loss(&stock).backward(), &stock);
        stock = stock_optimizer.step(rate(), stock, gradients);
        fused.step(rate(), loss);
    }
    assert_equal_weights(&stock, &fused.model());
}

fn accumulated_gradients(device: &Device) {
    let batches: Vec<Tensor<2>> = (0..5).map(|_| random([5, 3], device)).collect();
    let init = || {
        TwoHeads::init(device)
            .apply_lora(Lora::new(2, 4.0))
            .unfreeze()
    };
    // The last batch of a group does not reach the second head: it is stepped all the same.
    let loss = |model: &TwoHeads, batch: usize| {
        let x = model.body.forward(batches[batch].clone());
        let output = model.first.forward(x.clone());
        square_mean(match batch {
            2 => output,
            _ => output - model.second.forward(x),
        })
    };
    let groups: [&[usize]; 2] = [&[0, 1, 2], &[3, 4]];
    let initial = init();

    let mut stock = copy(&initial, init);
    let mut optimizer = AdamWConfig::new().init();
    for group in groups {
        let mut accumulator = GradientsAccumulator::new();
        for batch in group {
            let gradients = loss(&stock, *batch).backward();
            let gradients = GradientsParams::from_grads(gradients, &stock);
            accumulator.accumulate(&stock, gradients);
        }
        stock = optimizer.step(RATE, stock, accumulator.grads());
    }

    let mut fused = FusedOptimizer::new(copy(&initial, init), AdamWConfig::new().init());
    for group in groups {
        let (last, first) = group.split_last().expect("a group has batches");
        for batch in first {
            let before = fused.model();
            fused.accumulate(|model| loss(model, *batch));
            assert_equal_weights(&before, &fused.model());
        }
        fused.step(RATE, |model| loss(model, *last));
    }
    assert_equal_weights(&stock, &fused.model());
}

on_every_backend!(
    weights_tied_between_embedding_and_output,
    recurrent_weights_within_rounding,
    weights_not_used_in_the_loss,
    weights_used_in_some_steps_only,
    frozen_weights,
    weights_frozen_and_thawed_between_steps,
    lora_adapters_on_a_frozen_base,
    lora_adapters_on_a_base_in_training,
    batch_norm_with_running_statistics,
    running_statistics_reach_the_validation_model,
    lazily_initialized_parameters,
    weights_in_column_layout,
    option_vec_array_tuple_enum_int_and_bool_fields,
    parameters_of_rank_one_to_five,
    several_forward_passes_in_one_step,
    a_part_without_gradient_inside_the_step,
    transformer_encoder,
    gradient_checkpointing,
    models_in_f64,
    groups_with_their_own_optimizer_and_learning_rate,
    accumulated_gradients,
);
