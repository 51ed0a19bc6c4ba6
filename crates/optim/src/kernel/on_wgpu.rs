//! Tests of the kernel for groups against the step of the processor. wgpu has no bf16, so f32 replaces it.

use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::super::format::{
    CodeScheme, GROUP, Noise, PackedState, Residual, SquareRootCode, StateFormat, StateTensor,
    Weight, WeightFormat,
};
use super::super::in_format::Set;
use super::super::rule::Step;
use super::super::{AdamConfig, AdamWConfig, ElementWise, LionConfig, SgdConfig};
use super::{Rule, Update, single_pass};

const SHAPES: [[usize; 2]; 4] = [[64, 96], [71, 61], [1, 5000], [90, 50]];

fn wgpu() -> Device {
    Device::wgpu(Default::default())
}

/// Returns a rule of this optimizer, with the square-root codes of its states.
fn of<R: ElementWise>(optimizer: R) -> (Rule, Vec<SquareRootCode>) {
    let rule = optimizer.rule(Step {
        learning_rate: 0.01,
        time: 3,
        is_first: false,
        adds: false,
    });
    let roots = R::STATES[..rule.states].iter();
    let roots = roots.map(|state| state.root.unwrap_or(SquareRootCode::Positive));
    (rule, roots.collect())
}

fn rules() -> [(Rule, Vec<SquareRootCode>); 6] {
    let momentum = MomentumConfig {
        momentum: 0.9,
        dampening: 0.5,
        nesterov: true,
    };
    let penalty = WeightDecayConfig { penalty: 0.1 };
    let adamw = AdamWConfig::new().with_weight_decay(1.0);
    let amsgrad = AdamConfig::new().with_amsgrad(true);
    [
        of(adamw.clone()),
        of(adamw.with_cautious_weight_decay(true)),
        of(amsgrad.with_weight_decay(Some(penalty))),
        of(LionConfig::new().with_weight_decay(1.0)),
        of(SgdConfig::new().with_momentum(Some(momentum))),
        of(SgdConfig::new()),
    ]
}

/// Returns numbers of either sign over four orders of magnitude, some of them zero.
fn numbers(shape: [usize; 2], seed: u32) -> Tensor<2> {
    let noise = Noise::of_step(seed as usize);
    let number = |index: usize| {
        let bits = noise.bits(index as u32, 1.0);
        let magnitude =
            10.0_f32.powi(-((bits >> 24) as i32 % 5)) * (bits & 0xffff) as f32 / 65536.0;
        let sign = if bits >> 20 & 1 == 0 { 1.0 } else { -1.0 };
        sign * magnitude * f32::from(u8::from(bits >> 16 & 0xf != 0))
    };
    let numbers = (0..shape[0] * shape[1]).map(number).collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(numbers, shape), &Device::flex())
}

fn state(
    root: SquareRootCode,
    scheme: Option<CodeScheme>,
    shape: [usize; 2],
    seed: u32,
) -> StateTensor<2> {
    let state = numbers(shape, seed);
    let state = match root {
        SquareRootCode::Signed => state,
        SquareRootCode::Positive => state.clone() * state,
    };
    match scheme {
        Some(scheme) => StateTensor::Packed(PackedState::encoded(state, scheme)),
        None => StateTensor::Full(state),
    }
}

fn in_format(shape: [usize; 2], format: WeightFormat) -> Weight<2> {
    let value = Tensor::zeros(shape, (&Device::flex(), DType::BF16));
    let blank = Weight {
        residual: (format == WeightFormat::Split24).then(|| Residual::none(&value)),
        value,
        format,
    };
    let set = update(Rule::new::<0>(Set), format);
    single_pass(set, blank, numbers(shape, 5), Vec::new()).0
}

fn update(rule: Rule, format: WeightFormat) -> Update {
    Update {
        rule,
        formats: Some((format, Noise::of_step(3))),
        traced: Default::default(),
    }
}

fn on_wgpu(states: &[StateTensor<2>]) -> Vec<StateTensor<2>> {
    let states = states.iter().cloned();
    states.map(|state| state.on_device(&wgpu())).collect()
}

fn elements(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Returns the weight on the device, in f32.
fn there(weight: &Weight<2>) -> Weight<2> {
    let value = weight.value.clone().cast(FloatDType::F32);
    Weight {
        value: value.to_device(&wgpu()),
        format: weight.format,
        residual: weight.residual.clone().map(|low| low.on_device(&wgpu())),
    }
}

/// Returns the weight from the device.
fn back(weight: Weight<2>) -> Weight<2> {
    let value = weight.value.to_device(&Device::flex());
    let value = match weight.format {
        WeightFormat::Plain => value,
        _ => {
            let rounded = value.clone().cast(FloatDType::BF16);
            let exact = rounded.clone().cast(FloatDType::F32).into_data();
            assert_eq!(exact, value.into_data(), "what is stored is no bf16");
            rounded
        }
    };
    Weight {
        value,
        format: weight.format,
        residual: weight.residual.map(|low| low.on_device(&Device::flex())),
    }
}

fn in_full(weight: Weight<2>) -> Vec<f32> {
    elements(match weight.residual {
        Some(low) => low.joined(weight.value),
        None => weight.value.cast(FloatDType::F32),
    })
}

/// Asserts that numbers are equal up to this part of the larger one.
fn assert_near(found: &[f32], expected: &[f32], part: f32, context: &str) {
    for (index, (a, b)) in found.iter().zip(expected).enumerate() {
        let largest = a.abs().max(b.abs());
        assert!(
            (a - b).abs() <= part * largest + 1e-9,
            "{context}: {a} for {b} at {index}"
        );
    }
}

/// Asserts that both states have the same numbers; a few may have the adjacent code.
fn assert_same_state(found: StateTensor<2>, expected: StateTensor<2>, context: &str) {
    let packed = |state: StateTensor<2>| match state {
        StateTensor::Full(state) => Err(elements(state)),
        StateTensor::Packed(packed) => {
            let codes: Vec<u32> = packed.codes.into_data().iter::<u32>().collect();
            let scales: Vec<f32> = packed.scales.into_data().iter::<f32>().collect();
            Ok((codes, scales))
        }
    };
    match (packed(found), packed(expected)) {
        (Err(found), Err(expected)) => assert_near(&found, &expected, 1e-6, context),
        (Ok((codes, scales)), Ok((expected, others))) => {
            assert_near(&scales, &others, 1e-6, context);
            let differ = codes.iter().zip(&expected).filter(|(a, b)| a != b).count();
            assert!(
                differ <= codes.len() / 200,
                "{context}: {differ} of {} words",
                codes.len()
            );
        }
        _ => panic!("{context}: not the same form"),
    }
}

fn check(rule: Rule, roots: &[SquareRootCode], states: StateFormat, shape: [usize; 2]) {
    let context = format!("{rule:?} {states:?} {shape:?}");
    let states = roots.iter().enumerate().map(|(index, root)| {
        // The maximum of AMSGrad is full.
        let scheme = states.scheme(*root, usize::MAX).filter(|_| index < 2);
        state(*root, scheme, shape, index as u32)
    });
    let states: Vec<_> = states.collect();
    let (weight, gradient) = (numbers(shape, 7), numbers(shape, 8));
    let update = update(rule, WeightFormat::Plain);
    let on_device = on_wgpu(&states);
    let (found, found_states) = single_pass(
        update.clone(),
        there(&Weight::plain(weight.clone())),
        gradient.clone().to_device(&wgpu()),
        on_device,
    );
    let (expected, expected_states) = single_pass(update, Weight::plain(weight), gradient, states);
    assert_near(&in_full(back(found)), &in_full(expected), 1e-5, &context);
    for (found, expected) in found_states.into_iter().zip(expected_states) {
        assert_same_state(found.on_device(&Device::flex()), expected, &context);
    }
}

#[test]
fn step_on_wgpu_matches_processor() {
    for shape in SHAPES {
        for states in [StateFormat::Full, StateFormat::Bits8, StateFormat::Bits4] {
            for (rule, roots) in rules() {
                check(rule, &roots, states, shape);
            }
        }
    }
}

/// Returns numbers of all kinds: infinite, NaN, too small and too large for bf16.
fn hostile(shape: [usize; 2]) -> Tensor<2> {
    let mut numbers = elements(numbers(shape, 11));
    let odd = [
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::from_bits(0xff80_0001),
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        -0.0,
    ];
    for (index, number) in odd.into_iter().enumerate() {
        numbers[index * 131 + 3] = number;
    }
    Tensor::from_data(TensorData::new(numbers, shape), &Device::flex())
}

fn bits(numbers: Vec<f32>) -> Vec<u32> {
    numbers.into_iter().map(f32::to_bits).collect()
}

#[test]
fn rounding_and_split_on_wgpu_match_processor() {
    for shape in SHAPES {
        for format in [WeightFormat::Stochastic, WeightFormat::Split24] {
            let set = update(Rule::new::<0>(Set), format);
            let weight = in_format(shape, format);
            let numbers = hostile(shape);
            let (found, _) = single_pass(
                set.clone(),
                there(&weight),
                numbers.clone().to_device(&wgpu()),
                Vec::new(),
            );
            let (expected, _) = single_pass(set, weight, numbers, Vec::new());
            let expected = bits(in_full(expected));
            // The checksums are right, too: a residual of other weights counts as zero.
            assert_eq!(bits(in_full(back(found))), expected, "{format:?} {shape:?}");
        }
    }
}

#[test]
fn step_on_wgpu_includes_residual() {
    let format = WeightFormat::Split24;
    for shape in SHAPES {
        let (rule, roots) = rules()[0].clone();
        let weight = in_format(shape, format);
        let states = roots.iter().enumerate().map(|(index, root)| {
            let scheme = StateFormat::Bits8.scheme(*root, usize::MAX);
            state(*root, scheme, shape, index as u32)
        });
        let states: Vec<_> = states.collect();
        let update = update(rule, format);
        let gradient = numbers(shape, 8);
        let on_device = on_wgpu(&states);
        let there = there(&weight);
        let (found, _) = single_pass(
            update.clone(),
            there,
            gradient.clone().to_device(&wgpu()),
            on_device,
        );
        let (expected, _) = single_pass(update, weight, gradient, states);
        let (found, expected) = (in_full(back(found)), in_full(expected));
        // The last of 24 bits may differ, from a number that is slightly larger.
        assert_near(&found, &expected, 4e-5, &format!("{shape:?}"));
    }
}

#[test]
fn nan_on_wgpu_spreads_over_its_group() {
    let shape = [10, 500];
    for states in [StateFormat::Bits8, StateFormat::Bits4] {
        let (rule, roots) = rules()[3].clone();
        let scheme = states.scheme(roots[0], usize::MAX);
        let state = StateTensor::blank(&numbers(shape, 1).to_device(&wgpu()), scheme.unwrap());
        let mut gradient = elements(numbers(shape, 2));
        gradient[GROUP * 3 + 5] = f32::NAN;
        let gradient = TensorData::new(gradient, shape);
        let gradient = Tensor::<2>::from_data(gradient, (&wgpu(), DType::F32));
        let update = update(rule, WeightFormat::Plain);
        let weight = Weight::plain(numbers(shape, 1).to_device(&wgpu()));
        let (weight, state) = single_pass(update.clone(), weight, gradient, vec![state]);
        let gradient = numbers(shape, 4).to_device(&wgpu());
        let (weight, _) = single_pass(update, weight, gradient, state);
        for (index, value) in in_full(back(weight)).into_iter().enumerate() {
            assert_eq!(
                value.is_nan(),
                index / GROUP == 3,
                "{states:?} {index} {value}"
            );
        }
    }
}
