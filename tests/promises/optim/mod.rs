//! The single-pass optimizers equal Burn's own: to the bit on CPU backends, within a thousandth on others.

mod muon;
pub mod own_rule;

use backburn::optim as ours;
use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim as stock;
use burn::optim::decay::WeightDecayConfig;
use proptest::prelude::*;

use crate::common::mlp::Mlp;
use crate::common::*;

const LEARNING_RATE: f64 = 0.01;
const STEPS: usize = 5;

/// Calls a function with each of Burn's optimizers and ours, with all options.
macro_rules! for_every_pair {
    ($check:ident($($argument:expr),*)) => {
        for amsgrad in [false, true] {
            for decay in [None, Some(WeightDecayConfig::new(0.1))] {
                let stock = stock::AdamConfig::new().with_amsgrad(amsgrad);
                let ours = ours::AdamConfig::new().with_amsgrad(amsgrad);
                $check(
                    "Adam",
                    stock.with_weight_decay(decay.clone()).build(),
                    ours.with_weight_decay(decay).build(),
                    $($argument),*
                );
            }
            for (decay, cautious) in [(0.0, false), (0.1, false), (0.1, true)] {
                let stock = stock::AdamWConfig::new().with_amsgrad(amsgrad).with_beta_1(0.8);
                let ours = ours::AdamWConfig::new().with_amsgrad(amsgrad).with_beta_1(0.8);
                $check(
                    "AdamW",
                    stock.with_weight_decay(decay).with_cautious_weight_decay(cautious).build(),
                    ours.with_weight_decay(decay).with_cautious_weight_decay(cautious).build(),
                    $($argument),*
                );
            }
        }
        let heavy = MomentumConfig::new().with_momentum(0.9).with_dampening(0.3);
        let nesterov = heavy.clone().with_nesterov(true);
        for momentum in [None, Some(heavy), Some(nesterov)] {
            for decay in [None, Some(WeightDecayConfig::new(0.1))] {
                let stock = stock::SgdConfig::new().with_momentum(momentum.clone());
                let ours = ours::SgdConfig::new().with_momentum(momentum.clone());
                $check(
                    "Sgd",
                    stock.with_weight_decay(decay.clone()).build(),
                    ours.with_weight_decay(decay).build(),
                    $($argument),*
                );
            }
        }
        for decay in [0.0, 0.1] {
            $check(
                "Lion",
                stock::LionConfig::new().with_weight_decay(decay).build(),
                ours::LionConfig::new().with_weight_decay(decay).build(),
                $($argument),*
            );
        }
    };
}

/// Returns gradients of either sign and of all sizes, with zeros of both signs.
pub fn gradients<const D: usize>(shape: [usize; D], device: &Device) -> Vec<Tensor<D>> {
    let gradient = |step: usize| {
        let random = Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), device);
        let scale = 10f64.powi(step as i32 - 3);
        let zero = random.clone().greater_elem(1.0);
        let negative_zero = random.clone().lower_elem(-1.0);
        let random = random.mul_scalar(scale);
        random.mask_fill(zero, 0.0).mask_fill(negative_zero, -0.0)
    };
    (0..STEPS).map(gradient).collect()
}

/// Returns the parameter after each step.
pub fn run<const D: usize>(
    optimizer: impl Optimizer,
    mut parameter: Tensor<D>,
    gradients: &[Tensor<D>],
) -> Vec<TensorData> {
    let mut state = None;
    let mut after = Vec::new();
    for gradient in gradients {
        // Its own buffer, which the step may overwrite.
        let gradient = gradient.clone();
        (parameter, state) = optimizer.step(LEARNING_RATE, parameter, gradient, state);
        // A copy, because on wgpu the data could contain later in-place writes.
        let data = parameter.to_data();
        let bytes = Bytes::from_bytes_vec(data.as_bytes().to_vec());
        let copy = TensorData::from_bytes(bytes, data.shape().clone(), data.dtype());
        after.push(copy);
    }
    after
}

pub fn assert_equal<const D: usize>(
    name: &str,
    stock: impl Optimizer,
    ours: impl Optimizer,
    parameter: &Tensor<D>,
    gradients: &[Tensor<D>],
) {
    let before = parameter.to_data();
    let exact = is_exact(&parameter.device());
    let is_half = matches!(parameter.dtype(), DType::F16 | DType::BF16);
    let rounded_once = (exact && is_half).then(|| {
        let wide = |it: &Tensor<D>| it.clone().cast(FloatDType::F32);
        let first = gradients[..1].iter().map(wide).collect::<Vec<_>>();
        let data = run(stock.clone(), wide(parameter), &first).remove(0);
        data.convert_dtype(parameter.dtype())
    });
    let stock = run(stock, parameter.clone(), gradients);
    let ours = run(ours, parameter.clone(), gradients);
    if let Some(expected) = rounded_once {
        assert_eq!(ours[0].as_bytes(), expected.as_bytes(), "{name}");
    }
    for (step, (stock, ours)) in stock.iter().zip(&ours).enumerate() {
        assert_eq!(stock.dtype(), ours.dtype(), "{name}");
        let same = match stock.dtype() {
            DType::F32 | DType::F64 if exact => stock.as_bytes() == ours.as_bytes(),
            DType::F32 | DType::F64 => near(stock, ours, 1e-3),
            // Computed in f32 and rounded once, while Burn rounds after every operation.
            _ => moves_are_similar(&before, stock, ours),
        };
        assert!(same, "{name}, step {step}: stock {stock}, ours {ours}");
    }
    assert_eq!(
        parameter.to_data().as_bytes(),
        before.as_bytes(),
        "{name} changed a shared buffer"
    );
}

/// Returns `true` if the difference of both moves from `before` is at most half of the move in stock Burn, in the L2 norm.
pub fn moves_are_similar(before: &TensorData, stock: &TensorData, ours: &TensorData) -> bool {
    let distance = |a: &TensorData, b: &TensorData| -> f64 {
        let squares = a.iter::<f64>().zip(b.iter::<f64>());
        squares.map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
    };
    distance(stock, ours) <= 0.5 * distance(stock, before)
}

fn near(stock: &TensorData, ours: &TensorData, tolerance: f64) -> bool {
    let near = |(a, b): (f64, f64)| (a - b).abs() <= tolerance * (1.0 + a.abs());
    stock.iter::<f64>().zip(ours.iter::<f64>()).all(near)
}

fn all_options_match_stock(device: &Device) {
    let device = device.clone().inner();
    let parameter = Tensor::<2>::random([37, 23], Distribution::Default, &device).sub_scalar(0.5);
    let gradients = gradients([37, 23], &device);
    for_every_pair!(assert_equal(&parameter, &gradients));
}

fn all_float_types_match_stock(device: &Device) {
    let device = device.clone().inner();
    for dtype in [FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
        if !device.supports_dtype(dtype) {
            continue;
        }
        // One element at a time, and in the widest vectors.
        for shape in [[9, 7], [16, 8]] {
            let parameter = Tensor::<2>::random(shape, Distribution::Default, &device).cast(dtype);
            // The half types can represent their squares.
            let gradients = (0..STEPS).map(|_| {
                let random = Tensor::<2>::random(shape, Distribution::Uniform(0.5, 2.0), &device);
                let sign = Tensor::<2>::random(shape, Distribution::Normal(0.0, 1.0), &device);
                (random * sign.sign()).cast(dtype)
            });
            let gradients: Vec<_> = gradients.collect();
            for_every_pair!(assert_equal(&parameter, &gradients));
        }
    }
}

fn tensors_of_no_and_one_element_match_stock(device: &Device) {
    let device = device.clone().inner();
    for length in [0, 1] {
        let parameter = Tensor::<1>::ones([length], &device);
        let gradients = vec![Tensor::ones([length], &device); STEPS];
        for_every_pair!(assert_equal(&parameter, &gradients));
    }
}

fn views_match_stock(device: &Device) {
    let device = device.clone().inner();
    // Larger than a block that is gathered at a time.
    let whole = Tensor::<3>::random([20, 41, 30], Distribution::Default, &device);
    let parameter = whole.clone().swap_dims(0, 2).slice([3..28, 1..40, 0..19]);
    let shape = parameter.dims();
    let gradients = gradients([shape[1], shape[2], shape[0]], &device);
    let permuted = |g: Tensor<3>| g.permute([2, 0, 1]);
    let mut gradients: Vec<Tensor<3>> = gradients.into_iter().map(permuted).collect();
    // The gradient of a sum: one element, expanded.
    gradients[1] = Tensor::<3>::ones([1, 1, 1], &device).expand(shape);
    let before = whole.to_data();
    for_every_pair!(assert_equal(&parameter, &gradients));
    assert_eq!(whole.to_data().as_bytes(), before.as_bytes());
}

/// Large enough for several threads, at a length that no vector divides.
fn large_tensors_match_stock(device: &Device) {
    let device = device.clone().inner();
    let length = 250_007;
    let parameter = Tensor::<1>::random([length], Distribution::Default, &device);
    let gradients = gradients([length], &device);
    for_every_pair!(assert_equal(&parameter, &gradients));
}

fn records_load_in_both_directions(device: &Device) {
    for_every_pair!(assert_interchange(device));
}

fn assert_interchange(_name: &str, stock: impl Optimizer, ours: impl Optimizer, device: &Device) {
    let initial = Mlp::init(device);
    let copy = || copy(&initial, || Mlp::init(device));
    let [stock, ours]: [Box<dyn Fn() -> ModuleOptimizer>; 2] = [
        Box::new(move || ModuleOptimizer::from(stock.clone())),
        Box::new(move || ModuleOptimizer::from(ours.clone())),
    ];
    let x = Tensor::<2>::random([4, 3], Distribution::Default, device);
    let loss = |model: &Mlp, _| model.loss(x.clone());
    let train = |model, optimizer: &mut _| train_stock(model, optimizer, 2, LEARNING_RATE, loss);

    let mut throughout = stock();
    let expected = train(train(copy(), &mut throughout), &mut throughout);
    for (first, second) in [(&stock, &ours), (&ours, &stock), (&ours, &ours)] {
        let mut before = first();
        let model = train(copy(), &mut before);
        let bytes: Bytes = before.into_bytes().unwrap();
        let mut after = second().from_bytes(bytes).unwrap();
        let model = train(model, &mut after);
        assert_equal_weights(&expected, &model);
    }
}

/// A state that another program saved has no fields that Burn's configs lack.
#[test]
fn config_of_burn_loads_into_ours() {
    fn fields(config: &impl Config) -> serde_json::Map<String, serde_json::Value> {
        let json = serde_json::to_value(config).unwrap();
        json.as_object().unwrap().clone()
    }

    fn assert_loads<S: Config, O: Config>(stock: S) {
        let json = burn::config::config_to_json(&stock);
        let ours = O::load_binary(json.as_bytes()).unwrap();
        let mut found = fields(&ours);
        assert_eq!(found.remove("state_format").unwrap(), "Full");
        assert_eq!(found.remove("weight_format").unwrap(), "Plain");
        assert_eq!(found, fields(&stock));
        // Present fields are read.
        let mut json = fields(&ours);
        json.insert("state_format".into(), "Bits4".into());
        json.insert("weight_format".into(), "Split24".into());
        let text = serde_json::to_string(&json).unwrap();
        assert_eq!(fields(&O::load_binary(text.as_bytes()).unwrap()), json);
        json.insert("state_format".into(), "Bits5".into());
        let text = serde_json::to_string(&json).unwrap();
        assert!(O::load_binary(text.as_bytes()).is_err());
    }

    let clipping = Some(GradientClippingConfig::Norm(0.5));
    let decay = Some(WeightDecayConfig::new(0.1));
    let momentum = Some(MomentumConfig::new().with_nesterov(true));
    assert_loads::<_, ours::AdamConfig>(
        stock::AdamConfig::new()
            .with_beta_1(0.8)
            .with_weight_decay(decay.clone())
            .with_grad_clipping(clipping.clone()),
    );
    assert_loads::<_, ours::AdamWConfig>(
        stock::AdamWConfig::new()
            .with_cautious_weight_decay(true)
            .with_amsgrad(true),
    );
    assert_loads::<_, ours::SgdConfig>(
        stock::SgdConfig::new()
            .with_weight_decay(decay)
            .with_momentum(momentum)
            .with_gradient_clipping(clipping),
    );
    assert_loads::<_, ours::LionConfig>(stock::LionConfig::new().with_weight_decay(0.3));
}

/// On `flex` in one pass over memory, on `ndarray` by operations of whole tensors.
#[test]
fn amsgrad_not_finite_gradients_have_maximum_of_burns() {
    for device in cpus().map(Device::inner) {
        let gradient = |values: [f32; 4]| Tensor::<1>::from_data(values, &device);
        let first = gradient([1.0, f32::NAN, f32::INFINITY, 1e30]);
        let second = gradient([1.0, 1.0, 1.0, f32::NAN]);
        let stock = stock::AdamConfig::new().with_amsgrad(true).build();
        let ours = ours::AdamConfig::new().with_amsgrad(true).build();
        let parameter = || Tensor::<1>::ones([4], &device);
        let (mut stock_state, mut our_state) = (None, None);
        for gradient in [&first, &second, &first] {
            let next = stock.step(LEARNING_RATE, parameter(), gradient.clone(), stock_state);
            stock_state = next.1;
            let next = ours.step(LEARNING_RATE, parameter(), gradient.clone(), our_state);
            our_state = next.1;
            let state: &stock::AdamState<1> = stock_state.as_ref().unwrap();
            let expected = state.momentum.max_moment_2.clone().unwrap();
            let found = our_state.as_ref().unwrap().get("momentum.max_moment_2");
            let found = found.unwrap().into_data();
            assert_same_numbers("AMSGrad", vec![expected.into_data()], vec![found]);
        }
    }
}

fn fused_with_ours_matches_stock_with_burns_own(device: &Device) {
    let clipping = Some(GradientClippingConfig::Norm(0.01));
    let stock = stock::AdamWConfig::new().with_grad_clipping(clipping.clone());
    let ours = ours::AdamWConfig::new().with_grad_clipping(clipping);
    let group = ParamGroup::from_predicate("bias");
    let (stock_sgd, our_sgd) = (stock::SgdConfig::new(), ours::SgdConfig::new());
    let stock = stock.init();
    let mut stock = stock.with_group(group.clone(), stock_sgd.build(), None);
    let ours = ours.init().with_group(group, our_sgd.build(), None);

    let initial = Mlp::init(device);
    let copy = || copy(&initial, || Mlp::init(device));
    let x = Tensor::<2>::random([4, 3], Distribution::Default, device);
    let loss = |model: &Mlp, _| model.loss(x.clone());
    let stock = train_stock(copy(), &mut stock, 4, LEARNING_RATE, loss);
    let mut fused = FusedOptimizer::new(copy(), ours).unwrap();
    train_fused(&mut fused, 4, LEARNING_RATE, loss);
    assert_equal_weights(&stock, &fused.model());
    assert_changed(&initial, &fused.model(), |_| true);
}

on_every_backend!(
    all_options_match_stock,
    all_float_types_match_stock,
    tensors_of_no_and_one_element_match_stock,
    views_match_stock,
    large_tensors_match_stock,
    records_load_in_both_directions,
    fused_with_ours_matches_stock_with_burns_own,
);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A property of all hyperparameters and gradients.
    #[test]
    fn any_hyperparameters_match_stock(
        beta_1 in 0f32..1.0,
        beta_2 in 0f32..1.0,
        epsilon in prop::sample::select(vec![1e-12f32, 1e-8, 1e-5, 0.1]),
        decay in prop::sample::select(vec![0f32, 1e-4, 0.5]),
        values in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::ZERO | prop::num::f32::SUBNORMAL, 1..40),
    ) {
        let device = Device::flex();
        let gradient = Tensor::<1>::from_floats(values.as_slice(), &device);
        let parameter = gradient.clone().sin();
        let gradients = vec![gradient.clone(), gradient.clone().neg(), gradient];
        let config = stock::AdamWConfig::new().with_beta_1(beta_1).with_beta_2(beta_2);
        let stock = config.with_epsilon(epsilon).with_weight_decay(decay).build();
        let config = ours::AdamWConfig::new().with_beta_1(beta_1).with_beta_2(beta_2);
        let ours = config.with_epsilon(epsilon).with_weight_decay(decay).build();
        assert_same_numbers("AdamW", run(stock, parameter.clone(), &gradients), run(ours, parameter.clone(), &gradients));

        let stock = stock::LionConfig::new().with_beta_1(beta_1).with_beta_2(beta_2);
        let ours = ours::LionConfig::new().with_beta_1(beta_1).with_beta_2(beta_2);
        let (stock, ours) = (stock.with_weight_decay(decay).build(), ours.with_weight_decay(decay).build());
        assert_same_numbers("Lion", run(stock, parameter.clone(), &gradients), run(ours, parameter, &gradients));
    }
}

/// Asserts equal bits, except for NaN, which has many representations.
fn assert_same_numbers(name: &str, stock: Vec<TensorData>, ours: Vec<TensorData>) {
    for (stock, ours) in stock.iter().zip(&ours) {
        for (stock, ours) in stock.iter::<f32>().zip(ours.iter::<f32>()) {
            let same = stock.to_bits() == ours.to_bits() || stock.is_nan() && ours.is_nan();
            assert!(same, "{name}: stock {stock}, ours {ours}");
        }
    }
}
