//! Weight formats around any optimizer of Burn.

use backburn::optim::InFormat;
use burn::optim::{AdaGradConfig, AdafactorConfig, LambConfig, MuonConfig, RmsPropConfig};

use super::*;

/// Calls a function with Burn's optimizers, with and without a format.
macro_rules! for_every_optimizer {
    ($format:expr, $check:ident($($argument:expr),*)) => {
        for_every_optimizer!(@ $format, $check, ($($argument),*),
            AdafactorConfig::new(), AdaGradConfig::new(), AdamWConfig::new(), LambConfig::new(),
            MuonConfig::new(), RmsPropConfig::new(), SgdConfig::new())
    };
    (@ $format:expr, $check:ident, $arguments:tt, $($config:expr),*) => {
        $(for_every_optimizer!(@one $format, $check, $arguments, $config);)*
    };
    (@one $format:expr, $check:ident, ($($argument:expr),*), $config:expr) => {
        $check(
            stringify!($config),
            InFormat::new($config.build(), $format).into(),
            ModuleOptimizer::from($config.build()),
            $($argument),*
        )
    };
}

/// A shape with more elements than a small parameter has.
const WIDTH: usize = 66;

/// Returns a model with weights only, because Muon does not support vectors.
fn model() -> Vec<Linear> {
    let device = Device::flex().autodiff();
    let config = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
    let layers = vec![config.init(&device), config.init(&device)];
    cast(layers, FloatDType::BF16).unwrap()
}

fn inputs() -> Vec<Tensor<2>> {
    let inputs = randoms::<2>(5, [4, WIDTH], &Device::flex()).into_iter();
    let in_bf16 = inputs.map(|x| x.cast(FloatDType::BF16));
    in_bf16.map(Tensor::from_inner).collect()
}

fn assert_fused_equals_stock(name: &str, wrapped: ModuleOptimizer, _plain: ModuleOptimizer) {
    let (initial, inputs) = (model(), inputs());
    let loss =
        |model: &Vec<Linear>, step: usize| loss_of_layers(model, false, inputs[step].clone());
    let stock = train_stock(copy(&initial, model), &mut wrapped.clone(), 5, RATE, loss);
    let mut fused = FusedOptimizer::new(copy(&initial, model), wrapped.clone()).unwrap();
    train_fused(&mut fused, 2, RATE, loss);
    // Resumes in the middle, from either form of the record.
    for record in both_records(&fused) {
        let mut resumed = FusedOptimizer::new(fused.model(), wrapped.clone()).unwrap();
        resumed.load_record(reread(record)).unwrap();
        for step in 2..5 {
            resumed.step(RATE, |model| loss(model, step)).unwrap();
        }
        println!("{name}, resumed");
        assert_equal_weights(&stock, &resumed.model());
    }
    assert_changed(&initial, &stock, |_| true);
}

#[test]
fn fused_equals_stock_and_resumes_for_every_optimizer() {
    for format in WEIGHT_FORMATS {
        for_every_optimizer!(format, assert_fused_equals_stock());
    }
}

/// Optimizers of this crate have formats for their states themselves.
#[test]
fn wrapped_optimizers_of_this_crate_resume() {
    let momentum = || Some(MomentumConfig::new());
    for states in [StateFormat::Full, StateFormat::Bits8, StateFormat::Bits4] {
        for format in WEIGHT_FORMATS {
            let adam = optim::AdamConfig::new().with_state_format(states);
            let amsgrad = optim::AdamWConfig::new().with_amsgrad(true);
            let amsgrad = amsgrad.with_state_format(states);
            let sgd = optim::SgdConfig::new().with_momentum(momentum());
            let sgd = sgd.with_state_format(states);
            let lion = optim::LionConfig::new().with_state_format(states);
            println!("{states:?}, {format:?}");
            let wrapped: [(_, ModuleOptimizer); 4] = [
                ("Adam", InFormat::new(adam.build(), format).into()),
                ("AdamW", InFormat::new(amsgrad.build(), format).into()),
                ("Sgd", InFormat::new(sgd.build(), format).into()),
                ("Lion", InFormat::new(lion.build(), format).into()),
            ];
            for (name, wrapped) in wrapped {
                assert_fused_equals_stock(name, wrapped.clone(), wrapped);
            }
        }
    }
}

/// With gradients that do not depend on the weights.
fn assert_follows_f32(name: &str, wrapped: ModuleOptimizer, plain: ModuleOptimizer) {
    let initial = model();
    let factors: Vec<Tensor<2>> = (0..20)
        .map(|_| {
            let normal = Distribution::Normal(0.0, 1.0);
            let random = Tensor::<2>::random([WIDTH, WIDTH], normal, &Device::flex());
            Tensor::from_inner(random.cast(FloatDType::BF16))
        })
        .collect();
    let loss = |model: &Vec<Linear>, step: usize| {
        let values = model.iter().map(|linear| linear.weight.val());
        let sums = values.map(|value| {
            let dtype = FloatDType::from(value.dtype());
            (value * factors[step].clone().cast(dtype)).sum()
        });
        sums.reduce(|a, b| a + b).unwrap()
    };
    let mut split = FusedOptimizer::new(copy(&initial, model), wrapped).unwrap();
    let mut exact = FusedOptimizer::new(cast(initial, FloatDType::F32).unwrap(), plain).unwrap();
    train_fused(&mut split, 20, RATE, loss);
    train_fused(&mut exact, 20, RATE, loss);
    println!("{name}");
    let full = split.full_precision_model();
    assert_near(&exact.model(), &full);
}

#[test]
fn split24_around_every_optimizer_stays_near_f32() {
    for_every_optimizer!(WeightFormat::Split24, assert_follows_f32());
}

#[test]
fn wrapper_refuses_other_types_except_small_f32_parameters() {
    let device = Device::flex().autodiff();
    let format = WeightFormat::Stochastic;
    let optimizer = || InFormat::new(AdafactorConfig::new().build(), format).into();
    let x = Tensor::<2>::ones([2, 80], &device);
    let step = |model: Linear| {
        let mut fused = FusedOptimizer::<Linear>::new(model, optimizer())?;
        fused.step(RATE, |model| model.forward(x.clone()).mean())?;
        Ok::<_, FusedError>(fused.model())
    };
    let large = || LinearConfig::new(80, 80).init(&device);
    let error = step(large()).map(drop).unwrap_err();
    for words in ["Stochastic", "`weight`"] {
        assert_says(&error, words);
    }
    let init = || -> Linear { LinearConfig::new(80, 8).init(&device) };
    let small = init();
    let stock = AdafactorConfig::new().init();
    let mut plain = FusedOptimizer::new(copy(&small, init), stock).unwrap();
    plain
        .step(RATE, |model| model.forward(x.clone()).mean())
        .unwrap();
    assert_equal_weights(&plain.model(), &step(small).unwrap());
}

/// The advice for each format is another type, or an optimizer without a format.
#[test]
fn optimizer_advised_by_refusal_trains() {
    let device = Device::flex().autodiff();
    let x = Tensor::<2>::ones([2, 80], &device);
    for format in WEIGHT_FORMATS {
        let optimizer = || InFormat::new(AdafactorConfig::new().build(), format).into();
        let step = |model: Linear, x: Tensor<2>| {
            let mut fused = FusedOptimizer::new(model, optimizer())?;
            let step = fused.step(RATE, |model: &Linear| model.forward(x).mean());
            step.map(drop)
        };
        let large = || LinearConfig::new(80, 80).init(&device);
        let text = step(large(), x.clone()).unwrap_err().to_string();
        assert_says(&text, &format!("{format:?}"));
        assert!(!text.contains("or `WeightFormat::Plain`"), "{text}");
        for advice in ["cast(model, FloatDType::BF16)", "without `InFormat`"] {
            assert_says(&text, advice);
        }
        let in_bf16 = cast(large(), FloatDType::BF16).unwrap();
        step(in_bf16, x.clone().cast(FloatDType::BF16)).unwrap();
    }
}
