//! Averages of the weights are those of a loop by hand, whatever else a training does.

use backburn::optim::{self, StateFormat, WeightFormat};
use backburn::{
    FusedConfig, FusedError, FusedOptimizer, GlobalNormClippingConfig, GradientFlow, GradientHook,
    HookedParameter, LossScalingConfig, Offload, OffloadConfig, OffloadHost, Overflow,
    WaitingBlocks, WeightAverage, WeightAveragingConfig, cast, gradient_checkpointing,
};
use burn::module::{Module, ModuleMapper, Param, ParamGroup, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamWConfig, AdjustLrFn, GradientsParams, ModuleOptimizer, MuonConfig, Optimizer, SgdConfig,
};
use burn::tensor::{Device, Distribution, FloatDType, Tensor};

use crate::compare::*;

mod changes;
mod hostile;
mod norms;
mod records;
mod statistics;

const RATE: f64 = 0.05;

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Linear>,
}

impl Stack {
    fn init() -> Self {
        Self::of_width(8)
    }

    fn of_width(width: usize) -> Self {
        let device = Device::flex().autodiff();
        let layer = |_| LinearConfig::new(width, width).init(&device);
        Self {
            layers: (0..3).map(layer).collect(),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let run = |layer: &Linear, x| layer.forward(x).tanh();
        let layers = self.layers.iter();
        let x = layers.fold(x, |x, layer| gradient_checkpointing(layer, x, run));
        x.powi_scalar(2).mean()
    }
}

fn batches(count: usize, width: usize) -> Vec<Tensor<2>> {
    let device = Device::flex().autodiff();
    let batch = |_| Tensor::random([4, width], Distribution::Default, &device);
    (0..count).map(batch).collect()
}

fn averaging(config: WeightAveragingConfig) -> FusedConfig {
    FusedConfig::new().with_averaging(Some(config))
}

fn ema(decay: f64) -> WeightAveragingConfig {
    WeightAveragingConfig::new(WeightAverage::Exponential(decay))
}

/// `mean` taken on to `model`, parameter by parameter, with what a loop by hand does.
struct Next<'a, F: Fn(Tensor<1>, Tensor<1>) -> Tensor<1>> {
    of: Vec<(ParamId, Tensor<1>)>,
    next: &'a F,
}

impl<F: Fn(Tensor<1>, Tensor<1>) -> Tensor<1>> ModuleMapper for Next<'_, F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let found = self.of.iter().find(|(id, _)| *id == param.id);
        let value = found.expect("it is in both").1.clone();
        param.map(|mean| {
            let shape = mean.shape();
            let mean = (self.next)(mean.inner().flatten(0, D - 1), value);
            Tensor::from_inner(mean.reshape::<D, _>(shape)).require_grad()
        })
    }
}

struct Values(Vec<(ParamId, Tensor<1>)>);

impl ModuleMapper for Values {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.val().inner().flatten(0, D - 1);
        self.0.push((param.id, value));
        param
    }
}

fn next(mean: Stack, model: &Stack, next: impl Fn(Tensor<1>, Tensor<1>) -> Tensor<1>) -> Stack {
    let mut values = Values(Vec::new());
    let _ = model.clone().map(&mut values);
    mean.map(&mut Next {
        of: values.0,
        next: &next,
    })
}

/// A loop by hand: the models after each step, and the average of those that count.
fn by_hand(
    mut model: Stack,
    mut optimizer: ModuleOptimizer,
    xs: &[Tensor<2>],
    config: &WeightAveragingConfig,
) -> (Stack, Stack) {
    let mut mean: Option<Stack> = None;
    let mut count = 0;
    for (step, x) in xs.iter().enumerate() {
        let gradients = model.loss(x.clone()).backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = optimizer.step(RATE, model, gradients);
        if step < config.start || !(step - config.start).is_multiple_of(config.every) {
            continue;
        }
        mean = Some(match mean {
            None => model.clone(),
            Some(mean) => match config.average {
                WeightAverage::Uniform => next(mean, &model, |mean, value| {
                    let more = value - mean.clone();
                    mean + more / (count + 1) as f64
                }),
                WeightAverage::Exponential(decay) => {
                    let n = f64::from(count);
                    let warm = (1.0 + n) / (10.0 + n);
                    let decay = if config.warm_up {
                        decay.min(warm)
                    } else {
                        decay
                    };
                    next(mean, &model, |mean, value| {
                        mean * decay + value * (1.0 - decay)
                    })
                }
            },
        });
        count += 1;
    }
    let mean = mean.unwrap_or_else(|| model.clone());
    (model, mean)
}

fn configs() -> [WeightAveragingConfig; 5] {
    let uniform = WeightAveragingConfig::new(WeightAverage::Uniform);
    [
        ema(0.9),
        ema(0.999).with_warm_up(true),
        ema(0.5).with_every(2).with_start(1),
        uniform.clone(),
        uniform.with_start(3),
    ]
}

fn fused(initial: &Stack, config: FusedConfig) -> FusedOptimizer<Stack> {
    let model = copy(initial, Stack::init);
    FusedOptimizer::new(model, AdamWConfig::new().init()).with_config(config)
}

#[test]
fn averages_equal_a_loop_by_hand() {
    let initial = Stack::init();
    let xs = batches(7, 8);
    for config in configs() {
        let model = copy(&initial, Stack::init);
        let (model, mean) = by_hand(model, AdamWConfig::new().init(), &xs, &config);
        let mut fused = fused(&initial, averaging(config.clone()));
        for x in &xs {
            fused.step(RATE, |model| model.loss(x.clone()));
            assert_eq!(fused.last_step().copied, Some(0), "{config:?}");
        }
        assert_equal_weights(&mean, &fused.averaged());
        assert_equal_weights(&model, &fused.model());
    }
}

/// Where the step of the optimizer takes the average on in its own pass, and where it can't.
#[test]
fn averages_beside_the_optimizers_of_this_crate_equal_a_loop_by_hand() {
    let initial = Stack::init();
    let xs = batches(7, 8);
    let momentum = Some(MomentumConfig::new().with_nesterov(true));
    let matrices = ParamGroup::from_predicate("weight");
    let muon = MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW);
    let pairs: [(ModuleOptimizer, ModuleOptimizer); 6] = [
        (AdamWConfig::new().init(), optim::AdamWConfig::new().init()),
        // As many states as a pass can have.
        (
            AdamWConfig::new().with_amsgrad(true).init(),
            optim::AdamWConfig::new().with_amsgrad(true).init(),
        ),
        (SgdConfig::new().init(), optim::SgdConfig::new().init()),
        (
            SgdConfig::new().with_momentum(momentum.clone()).init(),
            optim::SgdConfig::new().with_momentum(momentum).init(),
        ),
        (
            AdamWConfig::new()
                .init()
                .with_group(matrices, muon.build(), None),
            optim::MuonWithAdamWConfig::new(Vec::new()).init(),
        ),
        // In an optimizer of somebody else.
        (
            Halving(AdamWConfig::new().build()).into(),
            Halving(optim::AdamWConfig::new().build()).into(),
        ),
    ];
    for (index, (stock, ours)) in pairs.into_iter().enumerate() {
        for config in configs() {
            println!("{index}: {config}");
            let model = copy(&initial, Stack::init);
            let (model, mean) = by_hand(model, stock.clone(), &xs, &config);
            let mut fused = FusedOptimizer::new(copy(&initial, Stack::init), ours.clone())
                .with_config(averaging(config));
            for x in &xs {
                fused.step(RATE, |model| model.loss(x.clone()));
            }
            assert_equal_weights(&model, &fused.model());
            assert_equal_weights(&mean, &fused.averaged());
        }
    }
}

/// An optimizer around another, which makes something else of its parameter.
#[derive(Clone)]
struct Halving<O>(O);

impl<O: Optimizer> Optimizer for Halving<O> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        lr: f64,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<O::State<D>>,
    ) -> (Tensor<D>, Option<O::State<D>>) {
        let (parameter, state) = self.0.step(lr, parameter, gradient, state);
        (parameter.mul_scalar(0.5), state)
    }

    fn to_device<const D: usize>(state: O::State<D>, device: &Device) -> O::State<D> {
        O::to_device(state, device)
    }
}

#[test]
fn averages_on_the_host_are_the_same() {
    let initial = Stack::init();
    let xs = batches(5, 8);
    let device = Device::flex();
    let model = copy(&initial, Stack::init);
    let config = ema(0.9).with_every(2);
    let (_, mean) = by_hand(model, AdamWConfig::new().init(), &xs, &config);
    for offload in [
        Offload::States,
        Offload::Updates,
        Offload::Weights(WaitingBlocks::All),
    ] {
        let offload = OffloadConfig::new(offload)
            .with_host(OffloadHost::NdArray)
            .with_min_elements(1);
        let how = averaging(config.clone()).with_offload(Some(offload));
        let model = copy(&initial, Stack::init);
        let mut fused =
            FusedOptimizer::new(model, AdamWConfig::new().init()).with_config_on(how, &device);
        for x in &xs {
            fused.step(RATE, |model| model.loss(x.clone()));
        }
        assert_equal_weights(&mean, &fused.averaged());
        // Offload ends, and the average goes along.
        fused.set_config(averaging(config.clone()));
        assert_equal_weights(&mean, &fused.averaged());
    }
}

/// Keeps gradients of the parameters of the last layer from being used.
struct Veto;

impl GradientHook for Veto {
    fn call<const D: usize>(
        &self,
        _parameter: HookedParameter<'_, D>,
        _gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        GradientFlow::Veto
    }
}

#[test]
fn what_moves_no_weight_moves_no_average() {
    let initial = Stack::init();
    let xs = batches(4, 8);
    let config = ema(0.5);

    // Micro-batches: the same as one step of the sum.
    let mut group = fused(&initial, averaging(config.clone()));
    for x in &xs {
        group.accumulate(|model| model.loss(x.clone()));
    }
    assert_equal_weights(&initial, &group.averaged());
    group.step_accumulated(RATE);
    assert_equal_weights(&group.model(), &group.averaged());

    // A skipped step.
    let scaling = LossScalingConfig::new().with_overflow(Overflow::SkipStep);
    let mut skipping = fused(
        &initial,
        averaging(config.clone()).with_loss_scaling(Some(scaling)),
    );
    skipping.step_repeatable(RATE, |model| model.loss(xs[0].clone()));
    let before = skipping.averaged();
    skipping.step_repeatable(RATE, |model| model.loss(xs[0].clone()) * f32::INFINITY);
    assert!(skipping.last_step().overflowed);
    assert_equal_weights(&before, &skipping.averaged());

    // A veto.
    let mut vetoed = fused(&initial, averaging(config.clone()))
        .with_hook(ParamGroup::from_predicate("layers.2"), Veto);
    for x in &xs {
        vetoed.step(RATE, |model| model.loss(x.clone()));
    }
    let averaged = vetoed.averaged().layers[2].weight.val();
    let initially = initial.layers[2].weight.val();
    averaged.into_data().assert_eq(&initially.into_data(), true);

    // Two passes are one step.
    let clipping = Some(GlobalNormClippingConfig::Exact(1e9));
    let mut clipped = fused(&initial, averaging(config.clone()).with_clipping(clipping));
    let mut plain = fused(&initial, averaging(config));
    for x in &xs {
        clipped.step_repeatable(RATE, |model| model.loss(x.clone()));
        plain.step(RATE, |model| model.loss(x.clone()));
    }
    assert_equal_weights(&plain.averaged(), &clipped.averaged());
}

#[test]
fn averages_in_bf16_with_low_bits_move_as_those_in_f32() {
    let width = 80;
    let initial = Stack::of_width(width);
    let xs = batches(60, width);
    let train = |config: WeightAveragingConfig, dtype| {
        let model = cast(copy(&initial, || Stack::of_width(width)), dtype);
        let mut fused =
            FusedOptimizer::new(model, SgdConfig::new().init()).with_config(averaging(config));
        for x in &xs {
            let x = Tensor::from_inner(x.clone().inner().cast(dtype));
            fused.step(2.0, |model| model.loss(x));
        }
        fused
    };
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let full = train(ema(0.99), dtype);
        let moved = |model: &Stack| {
            let start = initial.layers[0].weight.val().inner();
            let weight = model.layers[0].weight.val().inner().cast(FloatDType::F32);
            (weight - start).flatten::<1>(0, 1)
        };
        let expected = moved(&full.averaged());
        for format in [WeightFormat::Split24, WeightFormat::Split32] {
            let found = moved(&train(ema(0.99).with_format(format), dtype).averaged());
            let error = (found - expected.clone()).square().mean().sqrt();
            let size = expected.clone().square().mean().sqrt();
            let [error, size] = [error, size].map(|norm| norm.into_scalar::<f32>());
            assert!(
                // And what the last of its bits are worth.
                error < 0.02 * size + 3e-5,
                "{format:?} in {dtype:?}: {error} of {size}"
            );
        }
    }
}

#[test]
fn what_can_not_be_averaged_is_refused() {
    let mut one = fused(&Stack::init(), FusedConfig::new());
    for config in [
        ema(1.0),
        ema(-0.1),
        ema(f64::NAN),
        WeightAveragingConfig::new(WeightAverage::Uniform).with_every(0),
    ] {
        let error = one.try_set_config(averaging(config)).expect_err("refused");
        assert!(matches!(error, FusedError::Averaging { .. }), "{error:?}");
    }
    let offload = OffloadConfig::new(Offload::Updates).with_host(OffloadHost::NdArray);
    let config = averaging(ema(0.9).with_format(WeightFormat::Split24));
    let error = one.try_set_config(config.with_offload(Some(offload)));
    let error = error.expect_err("ndarray has no bf16");
    assert!(matches!(error, FusedError::Averaging { .. }), "{error:?}");
    assert_eq!(*one.config(), FusedConfig::new());

    let said = |fused: &mut FusedOptimizer<Stack>, parameters: &[&str]| {
        let parameters = parameters.iter().map(|part| part.to_string()).collect();
        let config = averaging(ema(0.9).with_parameters(parameters));
        let error = fused.try_set_config(config).expect_err("refused");
        assert!(matches!(error, FusedError::Averaging { .. }), "{error:?}");
        error.to_string()
    };
    let text = said(&mut one, &["layers.0", "laiers.1"]);
    assert!(text.contains("`laiers.1`"), "{text}");
    one.change_model(|model| model.freeze_group(ParamGroup::from_predicate("layers.1")));
    let text = said(&mut one, &["layers.1.weight"]);
    assert!(
        text.contains("`layers.1.weight`") && text.contains("thaw"),
        "{text}"
    );
    let mut frozen = FusedOptimizer::new(Stack::init().no_grad(), SgdConfig::new().init());
    let text = said(&mut frozen, &[]);
    assert!(text.contains("no parameter is in training"), "{text}");
    let decay = one
        .try_set_config(averaging(ema(1.5)))
        .unwrap_err()
        .to_string();
    assert!(decay.contains("1.5"), "{decay}");
}
