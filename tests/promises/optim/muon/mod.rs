//! Muon equals Burn's Muon, alone and in the recipe with AdamW. Unsupported parameters are refused by name before
//! training starts.

use backburn::optim as ours;
use burn::config::Config;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::nn::PaddingConfig1d;
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{self as stock, AdjustLrFn};

use crate::common::*;
use crate::optim::{assert_equal, gradients, moves_are_similar, run};
use crate::policies::scale;

mod formats;

const RATE: f64 = 0.02;
const MUON_RATE: f64 = 3.0;

/// A model with a tied embedding, matrices of every shape, norms and a convolution.
#[derive(Module, Debug)]
struct Network {
    embedding: Embedding,
    norm: LayerNorm,
    wide: Linear,
    tall: Linear,
    conv: Conv1d,
}

impl Network {
    fn init(device: &Device) -> Self {
        let padding = PaddingConfig1d::Same;
        Self {
            embedding: EmbeddingConfig::new(9, 6).init(device),
            norm: LayerNormConfig::new(6).init(device),
            wide: LinearConfig::new(6, 17).init(device),
            tall: LinearConfig::new(17, 6).init(device),
            conv: Conv1dConfig::new(6, 6, 3)
                .with_padding(padding)
                .init(device),
        }
    }

    fn loss(&self, tokens: Tensor<2, Int>) -> Tensor<1> {
        let x = self.norm.forward(self.embedding.forward(tokens));
        let x = self.conv.forward(x.swap_dims(1, 2)).swap_dims(1, 2);
        let run = |(wide, tall): &(Linear, Linear), x: Tensor<3>| {
            x.clone() + tall.forward(wide.forward(x).tanh())
        };
        let block = (self.wide.clone(), self.tall.clone());
        let x = gradient_checkpointing(&block, x, run);
        let logits = x.matmul(self.embedding.weight.val().transpose().unsqueeze());
        logits.powi_scalar(2).mean()
    }
}

fn batches(device: &Device, count: usize) -> Vec<Tensor<2, Int>> {
    let uniform = Distribution::Uniform(0.0, 9.0);
    let batch = |_| Tensor::<2>::random([3, 4], uniform, device).int();
    (0..count).map(batch).collect()
}

fn recipe() -> ours::MuonWithAdamWConfig {
    ours::MuonWithAdamWConfig::new(vec!["embedding".into()]).with_muon_rate(MUON_RATE)
}

/// Stock training: groups for the optimizers, and for their learning rates.
struct ByHand {
    optimizer: ModuleOptimizer,
    rates: ModuleLrScheduler,
}

impl ByHand {
    fn new() -> Self {
        let matrices = || ParamGroup::from_any_regexes(vec![r"^(wide|tall)\.weight$"]).unwrap();
        let muon = stock::MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW);
        let adamw = stock::AdamWConfig::new().init();
        Self {
            optimizer: adamw.with_group(matrices(), muon.build(), None),
            rates: ModuleLrScheduler::new(RATE).with_group(matrices(), RATE * MUON_RATE),
        }
    }

    fn step(&mut self, model: Network, gradients: GradientsParams) -> Network {
        self.optimizer.step(self.rates.step(), model, gradients)
    }

    /// Runs one step with the mean of these batches.
    fn step_of(&mut self, model: Network, batches: &[Tensor<2, Int>]) -> Network {
        let gradients = summed(&model, batches, |model, batch| model.loss(batch.clone()));
        self.step(model, gradients)
    }
}

fn copied(initial: &Network, device: &Device) -> Network {
    copy(initial, || Network::init(device))
}

/// Returns Burn's Muon and ours, with all options.
fn pairs() -> Vec<(stock::Muon, ours::Muon)> {
    let heavy = MomentumConfig::new().with_dampening(0.3);
    let mut pairs = Vec::new();
    for momentum in [None, Some(heavy)] {
        for decay in [None, Some(WeightDecayConfig::new(0.1))] {
            for adjust in [AdjustLrFn::Original, AdjustLrFn::MatchRmsAdamW] {
                let mut stock = stock::MuonConfig::new().with_adjust_lr_fn(adjust);
                let mut ours = ours::MuonConfig::new().with_adjust_lr_fn(adjust);
                if let Some(momentum) = &momentum {
                    stock = stock.with_momentum(momentum.clone()).with_ns_steps(3);
                    ours = ours.with_momentum(momentum.clone()).with_ns_steps(3);
                }
                let stock = stock.with_weight_decay(decay.clone());
                let ours = ours.with_weight_decay(decay.clone());
                pairs.push((stock.build(), ours.build()));
            }
        }
    }
    pairs
}

fn muon_steps_match_stock(device: &Device) {
    let device = device.clone().inner();
    for shape in [[7, 7], [12, 5], [5, 12], [1, 9], [9, 1], [1, 1], [130, 70]] {
        let parameter = Tensor::<2>::random(shape, Distribution::Default, &device);
        let gradients = gradients(shape, &device);
        // A view, as a layer computes it.
        let views: Vec<_> = gradients.iter().map(|g| g.clone().transpose()).collect();
        for (stock, ours) in pairs() {
            let transposed = parameter.clone().transpose();
            assert_equal("Muon", stock.clone(), ours.clone(), &parameter, &gradients);
            // (On ndarray, Burn multiplies a view in the order in which it lies in memory.)
            if device == Device::flex() {
                assert_equal("Muon", stock, ours, &transposed, &views);
            }
        }
    }
}

fn muon_steps_in_f64_and_half_types_match_stock(device: &Device) {
    let device = device.clone().inner();
    for dtype in [FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
        if !device.supports_dtype(dtype) {
            continue;
        }
        // Small, so that the rounding of a half type is small beside the update.
        let small = Distribution::Uniform(0.0, 0.1);
        let parameter = Tensor::<2>::random([8, 5], small, &device).cast(dtype);
        let normal = Distribution::Normal(0.0, 1.0);
        let gradient = || Tensor::<2>::random([8, 5], normal, &device).cast(dtype);
        let gradients: Vec<_> = (0..3).map(|_| gradient()).collect();
        for (stock, ours) in pairs() {
            match dtype {
                FloatDType::F64 => assert_equal("Muon", stock, ours, &parameter, &gradients),
                _ => {
                    let before = parameter.to_data();
                    let stock = run(stock, parameter.clone(), &gradients);
                    let ours = run(ours, parameter.clone(), &gradients);
                    for (stock, ours) in stock.iter().zip(&ours) {
                        let is_near = moves_are_similar(&before, stock, ours);
                        assert!(is_near, "{dtype:?}: {stock} {ours}");
                    }
                }
            }
        }
    }
}

fn muon_f16_steps_match_f32_for_any_gradient_size(device: &Device) {
    let device = device.clone().inner();
    if !device.supports_dtype(FloatDType::F16) {
        return;
    }
    let muon = || ours::MuonConfig::new().build();
    let zeros = Tensor::<2>::zeros([8, 5], &device);
    for scale in [1e-4, 1.0, 1e3] {
        let normal = Distribution::Normal(0.0, scale);
        let gradient = Tensor::<2>::random([8, 5], normal, &device).cast(FloatDType::F16);
        let in_f32 = gradient.clone().cast(FloatDType::F32);
        let narrow = run(muon(), zeros.clone().cast(FloatDType::F16), &[gradient]);
        let wide = run(muon(), zeros.clone(), &[in_f32]);
        let length = |data: &TensorData| data.iter::<f64>().map(|it| it * it).sum::<f64>().sqrt();
        let pairs = narrow[0].iter::<f64>().zip(wide[0].iter::<f64>());
        let apart = pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        assert!(length(&wide[0]) > 0.0);
        assert!(apart < 0.02 * length(&wide[0]), "{scale}: {apart}");
    }
}

fn muon_fused_matches_stock_with_groups(device: &Device) {
    let (initial, batches) = (Network::init(device), batches(device, 4));
    let mut by_hand = ByHand::new();
    let steps = batches.chunks(1);
    let stock = steps.fold(copied(&initial, device), |model, step| {
        by_hand.step_of(model, step)
    });
    let mut fused = FusedOptimizer::new(copied(&initial, device), recipe().init()).unwrap();
    for batch in &batches {
        fused.step(RATE, |model| model.loss(batch.clone())).unwrap();
    }
    assert_equal_weights(&stock, &fused.model());
    assert_changed(&initial, &fused.model(), |_| true);
}

fn muon_policies_match_stock_with_groups(device: &Device) {
    let (initial, batches) = (Network::init(device), batches(device, 6));
    let mut by_hand = ByHand::new();
    let pairs = batches.chunks(2);
    let stock = pairs.fold(copied(&initial, device), |model, pair| {
        by_hand.step_of(model, pair)
    });
    // A maximum norm above all norms, and a scale that is a power of two, change no gradient.
    let scaling = LossScalingConfig::new().with_initial_scale(1024.0);
    for config in [
        FusedConfig::new(),
        FusedConfig::exact(1e9),
        FusedConfig::scaling(scaling),
    ] {
        let fused = FusedOptimizer::new(copied(&initial, device), recipe().init()).unwrap();
        let mut fused = fused.with_config(config.clone()).unwrap();
        for pair in batches.chunks(2) {
            step_group(&mut fused, RATE, pair, |model, x| model.loss(x.clone()));
        }
        println!("{config}");
        assert_equal_weights(&stock, &fused.model());
    }
}

/// Muon does not depend on the length of a gradient, so only the weights on AdamW show the effect of clipping.
#[test]
fn muon_exact_clipping_matches_loop_by_hand() {
    let device = Device::flex().autodiff();
    let (initial, batches) = (Network::init(&device), batches(&device, 4));
    let train = |norm| {
        let fused = FusedOptimizer::new(copied(&initial, &device), recipe().init()).unwrap();
        let mut fused = fused.with_config(FusedConfig::exact(norm)).unwrap();
        let mut coefficients = Vec::new();
        for batch in &batches {
            fused
                .step_repeatable(RATE, |model| model.loss(batch.clone()))
                .unwrap();
            coefficients.push(fused.last_step().clipping.unwrap());
        }
        (fused.model(), coefficients)
    };
    let (fused, coefficients) = train(1e-2);
    assert!(coefficients.iter().all(|coefficient| *coefficient < 0.9));
    let mut by_hand = ByHand::new();
    let steps = batches.iter().zip(&coefficients);
    let stock = steps.fold(copied(&initial, &device), |model, (batch, coefficient)| {
        let gradients = model.loss(batch.clone()).backward();
        let mut gradients = GradientsParams::from_grads(gradients, &model);
        scale(&model, &mut gradients, *coefficient);
        by_hand.step(model, gradients)
    });
    assert_equal_weights(&stock, &fused);
}

#[test]
fn muon_records_load_in_stock_and_back() {
    let device = Device::flex().autodiff();
    let (initial, batches) = (Network::init(&device), batches(&device, 4));
    let mut throughout = ByHand::new();
    let steps = batches.chunks(1);
    let expected = steps.fold(copied(&initial, &device), |model, step| {
        throughout.step_of(model, step)
    });

    // From ours to Burn's, and back to ours.
    let mut first = FusedOptimizer::new(copied(&initial, &device), recipe().init()).unwrap();
    for batch in &batches[..2] {
        first.step(RATE, |model| model.loss(batch.clone())).unwrap();
    }
    let mut by_hand = ByHand::new();
    by_hand.optimizer = by_hand.optimizer.load_record(reread(first.to_record()));
    let model = by_hand.step_of(first.model(), &batches[2..3]);
    let mut last = FusedOptimizer::new(model, recipe().init()).unwrap();
    last.load_record(reread(by_hand.optimizer.to_record()))
        .unwrap();
    last.step(RATE, |model| model.loss(batches[3].clone()))
        .unwrap();
    assert_equal_weights(&expected, &last.model());
}

#[derive(Module, Debug)]
struct Experts {
    stack: Param<Tensor<3>>,
    router: Linear,
}

#[test]
fn muon_parameter_of_other_rank_is_refused_before_training() {
    let device = Device::flex().autodiff();
    let muon = || ours::MuonConfig::new().init();
    let refused = |error: FusedError, named: &str, rank: &str| {
        assert!(matches!(&error, FusedError::UnsupportedParameter { path, .. } if path == named));
        for words in [named, rank, "MuonWithAdamWConfig"] {
            assert_says(&error, words);
        }
    };
    let linear = || LinearConfig::new(3, 4).init(&device);
    let error = FusedOptimizer::<Linear>::new(linear(), muon()).unwrap_err();
    refused(error, "bias", "1 dimensions");
    let conv: Conv1d = Conv1dConfig::new(3, 3, 2).with_bias(false).init(&device);
    let error = FusedOptimizer::new(conv, muon()).unwrap_err();
    refused(error, "weight", "3 dimensions");
    let experts = Experts {
        stack: Param::from_tensor(Tensor::ones([2, 3, 4], &device)),
        router: LinearConfig::new(3, 2).with_bias(false).init(&device),
    };
    let error = FusedOptimizer::new(experts, muon()).unwrap_err();
    refused(error, "stack", "3 dimensions");

    // In its own group, inside another optimizer.
    let group = ParamGroup::from_predicate("weight");
    let in_group = || {
        let adamw = stock::AdamWConfig::new().init();
        adamw.with_group(group.clone(), ours::MuonConfig::new().build(), None)
    };
    FusedOptimizer::<Linear>::new(linear(), in_group()).unwrap();
    let norm: LayerNorm = LayerNormConfig::new(3).init(&device);
    FusedOptimizer::new(norm, in_group()).unwrap();
    let wrapped = ours::InFormat::new(ours::MuonConfig::new().build(), WeightFormat::Stochastic);
    let error = FusedOptimizer::<Linear>::new(linear(), wrapped.into()).unwrap_err();
    refused(error, "bias", "1 dimensions");

    // A frozen parameter is not updated. If it is unfrozen, it is refused, and nothing has changed.
    let frozen = linear().freeze_group(ParamGroup::from_predicate("bias"));
    let mut fused = FusedOptimizer::<Linear>::new(frozen, muon()).unwrap();
    let x = Tensor::<2>::ones([2, 3], &device);
    fused
        .step(RATE, |model| model.forward(x.clone()).sum())
        .unwrap();
    let error = fused.change_model(Linear::unfreeze).unwrap_err();
    refused(error, "bias", "1 dimensions");
    fused
        .step(RATE, |model| model.forward(x.clone()).sum())
        .unwrap();
    assert_eq!(fused.num_frozen(), 1);
}

#[test]
fn muon_config_of_burn_loads_and_recipe_keeps_options() {
    let stock = stock::MuonConfig::new()
        .with_weight_decay(Some(WeightDecayConfig::new(0.1)))
        .with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW)
        .with_ns_steps(7);
    let json = burn::config::config_to_json(&stock);
    let ours = ours::MuonConfig::load_binary(json.as_bytes()).unwrap();
    let text = ours.to_string();
    for words in ["\"ns_steps\": 7", "MatchRmsAdamW"] {
        assert_says(&text, words);
    }
    let recipe = recipe().with_state_format(StateFormat::Bits4);
    let json = recipe.to_string();
    let again = ours::MuonWithAdamWConfig::load_binary(json.as_bytes()).unwrap();
    assert_eq!(again.to_string(), json);
    assert_eq!(json.matches("Bits4").count(), 2, "{json}");
}

#[test]
fn muon_without_names_updates_all_matrices() {
    let device = Device::flex().autodiff();
    let initial: Linear = LinearConfig::new(5, 4).init(&device);
    let copy = || copy(&initial, || LinearConfig::new(5, 4).init(&device));
    let x = Tensor::<2>::random([3, 5], Distribution::Default, &device);
    let loss = |model: &Linear, _| model.forward(x.clone()).powi_scalar(2).sum();
    let muon = stock::MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW);
    let matrices = ParamGroup::from_predicate("weight");
    let adamw = stock::AdamWConfig::new().init();
    let mut optimizer = adamw.with_group(matrices, muon.build(), None);
    let stock = train_stock(copy(), &mut optimizer, 3, RATE, loss);
    let config = ours::MuonWithAdamWConfig::new(Vec::new());
    let mut fused = FusedOptimizer::new(copy(), config.init()).unwrap();
    train_fused(&mut fused, 3, RATE, loss);
    assert_equal_weights(&stock, &fused.model());
}

on_every_backend!(
    muon_steps_match_stock,
    muon_steps_in_f64_and_half_types_match_stock,
    muon_f16_steps_match_f32_for_any_gradient_size,
    muon_fused_matches_stock_with_groups,
    muon_policies_match_stock_with_groups,
);
