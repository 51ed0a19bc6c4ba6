//! Weights and optimizer states in fewer bits: fused training equals the stock loop with the same optimizer, and only
//! the format itself loses precision.

mod accumulation;
mod damaged;
mod devices;
mod fair;
mod hostile;
mod loading;
mod misuse;
mod records;
mod store;
mod weights;
mod wrapped;

use crate::common::*;
use crate::optim::own_rule;

const RATE: f64 = 1e-2;

/// Two layers with more weights than a small parameter; one number of weights is not a multiple of a group.
#[derive(Module, Debug)]
struct Network {
    first: Linear,
    norm: BatchNorm,
    second: Linear,
}

impl Network {
    fn init(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(61, 71).init(device),
            norm: BatchNormConfig::new(71).init(device),
            second: LinearConfig::new(71, 64).init(device),
        }
    }

    /// A sum, because the gradients of a mean may be too small to change bf16 biases.
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let hidden = self.first.forward(x).tanh();
        self.second.forward(hidden).powi_scalar(2).sum()
    }
}

/// Asserts that weights differ by at most a thousandth of the largest of their parameter. Neighbours in bf16 differ by four.
pub fn assert_near<M: Module>(expected: &M, found: &M) {
    for ((path, expected), (_, found)) in weights(expected).iter().zip(&weights(found)) {
        let sizes = expected.iter::<f64>().map(f64::abs);
        let most = sizes.fold(0.0, f64::max) / 1000.0;
        for (expected, found) in expected.iter::<f64>().zip(found.iter::<f64>()) {
            let error = (expected - found).abs();
            assert!(error <= most, "{path}: {found} for {expected}");
        }
    }
}

/// Returns the formats with the float types of their weights that the device supports.
fn formats(device: &Device) -> Vec<(StateFormat, WeightFormat, FloatDType)> {
    let mut formats = Vec::new();
    for states in [StateFormat::Bits8, StateFormat::Bits4] {
        formats.push((states, WeightFormat::Plain, FloatDType::F32));
        formats.push((states, WeightFormat::Plain, FloatDType::F16));
    }
    for states in [StateFormat::Full, StateFormat::Bits8, StateFormat::Bits4] {
        for weights in WEIGHT_FORMATS {
            formats.push((states, weights, FloatDType::BF16));
        }
    }
    formats.retain(|(_, _, dtype)| device.supports_dtype(*dtype));
    formats
}

fn optimizers(states: StateFormat, weights: WeightFormat) -> Vec<(&'static str, ModuleOptimizer)> {
    let mut all = element_wise(states, weights);
    all.push(muon(states, weights));
    all
}

fn muon(states: StateFormat, weights: WeightFormat) -> (&'static str, ModuleOptimizer) {
    let muon = optim::MuonWithAdamWConfig::new(vec!["second".into()])
        .with_state_format(states)
        .with_weight_format(weights);
    ("Muon with AdamW", muon.init())
}

/// Returns the number of steps after which two runs with the same optimizer can be compared. The iterations of Muon
/// amplify rounding errors in small singular values of the momentum, so one different code changes many weights. On a
/// device whose rounding varies between runs (as with Burn's own Muon), runs are comparable only after one step.
fn steps(device: &Device, optimizer: &str, states: StateFormat) -> usize {
    let stretched = optimizer.contains("Muon") && states != StateFormat::Full;
    match stretched && !is_exact(device) {
        true => 1,
        false => 4,
    }
}

fn element_wise(
    states: StateFormat,
    weights: WeightFormat,
) -> Vec<(&'static str, ModuleOptimizer)> {
    let adam = optim::AdamConfig::new().with_state_format(states);
    let adamw = optim::AdamWConfig::new().with_state_format(states);
    let sgd = optim::SgdConfig::new().with_state_format(states);
    let lion = optim::LionConfig::new().with_state_format(states);
    let momentum = MomentumConfig::new().with_dampening(0.3);
    vec![
        (
            "RMSProp of the test",
            own_rule::rms_prop()
                .with_state_format(states)
                .with_weight_format(weights)
                .into(),
        ),
        ("Adam", adam.with_weight_format(weights).init()),
        (
            "AdamW with AMSGrad",
            adamw
                .clone()
                .with_amsgrad(true)
                .with_weight_format(weights)
                .init(),
        ),
        (
            "AdamW, cautious",
            adamw
                .with_weight_decay(0.1)
                .with_cautious_weight_decay(true)
                .with_weight_format(weights)
                .init(),
        ),
        ("Sgd", sgd.clone().with_weight_format(weights).init()),
        (
            "Sgd with momentum",
            sgd.with_momentum(Some(momentum))
                .with_weight_format(weights)
                .init(),
        ),
        ("Lion", lion.with_weight_format(weights).init()),
    ]
}

/// Returns a record in the form of stock Burn, and a compact one.
fn both_records<M: Module>(fused: &FusedOptimizer<M>) -> [OptimizerRecord; 2] {
    let compact = optim::compact_records(|| fused.to_record());
    [fused.to_record(), compact]
}

fn batches(device: &Device, dtype: FloatDType) -> Vec<Tensor<2>> {
    let batches = randoms::<2>(6, [5, 61], &device.clone().inner()).into_iter();
    batches.map(|x| Tensor::from_inner(x.cast(dtype))).collect()
}

on_every_backend!(
    formats_fused_matches_stock,
    formats_with_all_policies_match_stock,
    formats_changed_between_steps_continue,
    formats_with_offload_match_without,
    records_taken_earlier_are_unchanged_by_steps,
);

fn formats_fused_matches_stock(device: &Device) {
    for (states, weights, dtype) in formats(device) {
        let initial = cast(Network::init(device), dtype).unwrap();
        let copy = || copy(&initial, || cast(Network::init(device), dtype).unwrap());
        let batches = batches(device, dtype);
        let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
        for (name, optimizer) in optimizers(states, weights) {
            let steps = steps(device, name, states);
            let stock = train_stock(copy(), &mut optimizer.clone(), steps, RATE, loss);
            let mut fused = FusedOptimizer::new(copy(), optimizer).unwrap();
            train_fused(&mut fused, steps, RATE, loss);
            let context = format!("{name}, {states:?}, {weights:?}, {dtype:?}");
            println!("{context}");
            assert_equal_weights(&stock, &fused.model());
            assert_changed(&initial, &fused.model(), |path| !path.starts_with("norm"));
        }
    }
}

/// Accumulation equals a loop with Burn alone, and exact clipping by a norm that is not reached equals none.
fn formats_with_all_policies_match_stock(device: &Device) {
    let (dtype, weights) = match device.supports_dtype(FloatDType::BF16) {
        true => (FloatDType::BF16, WeightFormat::Split24),
        false => (FloatDType::F32, WeightFormat::Plain),
    };
    let optimizer = optim::AdamWConfig::new()
        .with_state_format(StateFormat::Bits8)
        .with_weight_format(weights)
        .init();
    let initial = cast(Network::init(device), dtype).unwrap();
    let copy = || copy(&initial, || cast(Network::init(device), dtype).unwrap());
    let batches = batches(device, dtype);
    let loss = |model: &Network, batch: &Tensor<2>| model.loss(batch.clone());
    let mut stepped = optimizer.clone();
    let stock = batches.chunks(2).fold(copy(), |model, pair| {
        step_stock(model, &mut stepped, RATE, pair, loss)
    });
    let mut fused = FusedOptimizer::new(copy(), optimizer.clone()).unwrap();
    for pair in batches.chunks(2) {
        for batch in pair {
            fused.accumulate(|model| model.loss(batch.clone())).unwrap();
        }
        fused.step_accumulated(RATE).unwrap();
    }
    assert_equal_weights(&stock, &fused.model());

    // A maximum norm above all norms changes nothing, a smaller one does.
    let clipped = |norm: f64| {
        let fused = FusedOptimizer::new(copy(), optimizer.clone()).unwrap();
        let mut fused = fused.with_config(FusedConfig::exact(norm)).unwrap();
        for batch in &batches {
            fused
                .step_repeatable(RATE, |model| model.loss(batch.clone()))
                .unwrap();
        }
        fused.model()
    };
    let mut free = FusedOptimizer::new(copy(), optimizer.clone()).unwrap();
    for batch in &batches {
        free.step(RATE, |model| model.loss(batch.clone())).unwrap();
    }
    assert_equal_weights(&free.model(), &clipped(1e9));
    assert_changed(&free.model(), &clipped(1e-3), |path| {
        !path.starts_with("norm")
    });
}

/// From f32 to 8 bits, to 4 bits, and back to full states: each step continues from the previous values.
fn formats_changed_between_steps_continue(device: &Device) {
    let batches = batches(device, FloatDType::F32);
    let config = |states| optim::AdamWConfig::new().with_state_format(states);
    let start = config(StateFormat::Full).init();
    let mut fused = FusedOptimizer::new(Network::init(device), start).unwrap();
    fused
        .step(RATE, |model| model.loss(batches[0].clone()))
        .unwrap();
    let later = [StateFormat::Bits8, StateFormat::Bits4, StateFormat::Full];
    for (step, states) in later.into_iter().enumerate() {
        let record = fused.to_record();
        let model = fused.model();
        fused = FusedOptimizer::new(model, config(states).init()).unwrap();
        fused.load_record(record).unwrap();
        fused
            .step(RATE, |model| model.loss(batches[step + 1].clone()))
            .unwrap();
    }
    let record = fused.to_record();
    let plain = burn::optim::AdamWConfig::new().init();
    let mut stock = FusedOptimizer::new(fused.model(), plain).unwrap();
    stock.load_record(record).unwrap();
    stock
        .step(RATE, |model| model.loss(batches[4].clone()))
        .unwrap();
    fused
        .step(RATE, |model| model.loss(batches[4].clone()))
        .unwrap();
    assert_equal_weights(&stock.model(), &fused.model());
}

/// Quantized states are stored on the host, or updated there. (Matrix products have other last bits there.)
fn formats_with_offload_match_without(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let batches = batches(device, FloatDType::F32);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    for (name, optimizer) in element_wise(StateFormat::Bits8, WeightFormat::Plain) {
        let mut plain = FusedOptimizer::new(copy(), optimizer.clone()).unwrap();
        train_fused(&mut plain, 4, RATE, loss);
        for offload in [Offload::States, Offload::Updates] {
            let config = offload_from(device, offload).with_min_elements(10);
            let fused = FusedOptimizer::new(copy(), optimizer.clone()).unwrap();
            let mut fused = fused
                .with_config_on(FusedConfig::offload(config), device)
                .unwrap();
            train_fused(&mut fused, 2, RATE, loss);
            // A record has the form of stock Burn by default.
            let [full, compact] = both_records(&fused).map(|record| record.into_bytes().unwrap());
            let is_smaller = compact.len() < full.len();
            assert!(name.ends_with("Sgd") || is_smaller, "{name}");
            for record in [full, compact] {
                fused
                    .load_record(OptimizerRecord::from_bytes(record).unwrap())
                    .unwrap();
            }
            for step in 2..4 {
                fused.step(RATE, |model| loss(model, step)).unwrap();
            }
            println!("{name}, {offload:?}");
            match (offload, is_exact(device)) {
                // Values that host and device round differently have different random numbers afterwards.
                (Offload::Updates, false) => assert_within(&plain.model(), &fused.model(), 0.1),
                _ => assert_equal_weights(&plain.model(), &fused.model()),
            }
        }
    }
}

/// Panics if a weight differs by more than this part of its change in four steps.
fn assert_within(expected: &Network, found: &Network, part: f64) {
    for ((path, expected), (_, found)) in weights(expected).iter().zip(&weights(found)) {
        for (a, b) in expected.iter::<f64>().zip(found.iter::<f64>()) {
            assert!((a - b).abs() <= part * 4.0 * RATE, "{path}: {b} for {a}");
        }
    }
}

/// Records must not share tensors that are updated in place.
fn records_taken_earlier_are_unchanged_by_steps(device: &Device) {
    let batches = batches(device, FloatDType::F32);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    for states in [StateFormat::Full, StateFormat::Bits8, StateFormat::Bits4] {
        for (name, optimizer) in optimizers(states, WeightFormat::Plain) {
            println!("{name}, {states:?}");
            let steps = steps(device, name, states);
            let again = optimizer.clone();
            let mut fused = FusedOptimizer::new(Network::init(device), optimizer).unwrap();
            train_fused(&mut fused, 2, RATE, loss);
            let model = copy(&fused.model(), || Network::init(device));
            let mut resumed = FusedOptimizer::new(model, again).unwrap();
            let record = optim::compact_records(|| fused.to_record());
            let now = optim::compact_records(|| fused.to_record());
            let now = now.into_bytes().unwrap().to_vec();
            train_fused(&mut fused, steps, RATE, loss);
            let record = record.into_bytes().unwrap();
            assert_eq!(record.to_vec(), now);
            resumed
                .load_record(OptimizerRecord::from_bytes(record).unwrap())
                .unwrap();
            train_fused(&mut resumed, steps, RATE, loss);
            assert_equal_weights(&fused.model(), &resumed.model());
        }
    }
}
