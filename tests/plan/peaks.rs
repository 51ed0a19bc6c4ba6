//! Measured peaks equal planned peaks.

use std::sync::atomic::{AtomicUsize, Ordering};

use backburn::optim::AdamWConfig;
use burn::nn::{RotaryEncoding, RotaryEncodingConfig};

use crate::models::*;
use crate::{
    BYTES, ENOUGH, alone, bytes, device, fixed, in_one_thread, init, peak, plan, planner, trained,
};

use crate::common::*;

/// Bytes that the planner adds for the buffers of threads.
const SLACK: usize = 1 << 17;

/// Plans for budgets from the peak of fused training down to half of the smallest candidate, and trains each plan. The
/// planned bytes are from 0.99 to 1.05 times the peak, plus the [`SLACK`]. If nothing fits, a training fits the budget in the error.
fn hold<K: Kind>() {
    let whole = plan::<K>(ENOUGH).unwrap();
    println!("{}\n{whole}", K::NAME);
    let (top, least) = (whole.device_bytes, bytes(&whole).into_iter().min().unwrap());
    let mut fits = 0;
    for part in 0..6 {
        let budget = top - (top - least / 2) * part / 5;
        let (planned, of_planning) = peak(|| plan::<K>(budget));
        match planned {
            Ok(plan) => {
                let bytes = trained::<K, _>(&plan);
                let ratio = plan.device_bytes as f64 / bytes as f64;
                println!("{budget}: {bytes} taken, {ratio:.3}; planning {of_planning}\n{plan}");
                // The peak has the buffers of `gemm`: for each thread, the bytes of a second-level cache.
                let without_slack = (plan.device_bytes - SLACK) as f64 / bytes as f64;
                let is_near = ratio >= 0.99 && without_slack <= 1.05;
                assert!(bytes <= budget && of_planning <= budget, "{}", K::NAME);
                assert!(is_near, "{}: {ratio:.3}", K::NAME);
                fits += 1;
            }
            Err(PlanError::NothingFits {
                least: enough,
                is_enough,
                ..
            }) => {
                println!("{budget}: nothing fits, {enough} is enough");
                assert!(enough > budget && is_enough);
                let bytes = trained::<K, _>(&plan::<K>(enough).unwrap());
                assert!(bytes <= enough, "{}: {bytes} taken", K::NAME);
                assert!(enough as f64 <= 1.3 * least as f64, "{}: {enough}", K::NAME);
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(fits > 0, "{}: nothing fits anything", K::NAME);
}

macro_rules! hold {
    ($($test:ident: $model:ty;)*) => {
        $(#[test]
        fn $test() {
            alone!();
            hold::<$model>();
        })*
    };
}

hold! {
    plans_of_residual_network_hold: Mlp;
    plans_without_blocks_hold: Plain;
    plans_of_recurrent_network_hold: Recurrent;
    plans_of_convolutional_network_hold: Convolutional;
    plans_of_tied_weights_hold: Tied;
    plans_of_network_that_draws_hold: Variational;
    plans_of_mixture_of_experts_hold: Mixture;
    plans_of_embeddings_hold: Bag;
    plans_of_loss_in_chunks_hold: Language;
    plans_of_adapters_hold: Adapted;
    plans_of_adapters_on_codes_hold: InCodes;
    plans_of_adversarial_networks_hold: Adversarial;
    plans_of_attention_over_recurrent_network_hold: Attentive;
    plans_of_tied_weights_with_batch_normalization_hold: Normed;
    plans_of_deep_network_with_dropout_hold: Deep;
}

#[test]
fn plans_of_u_net_hold() {
    alone!();
    in_one_thread(hold::<UNet>);
}

/// Autodiff keeps nodes of a graph whose backward pass is interrupted, and a panic with a message is printed.
#[test]
fn ended_passes_leave_no_bytes_and_print_no_panic() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    alone!();
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        PANICS.fetch_add(1, Ordering::Relaxed);
    }));
    let planner = planner::<Recurrent>().with_order(Technique::SAME_PRECISION);
    let of = |budget| {
        let planned = planner.plan(Recurrent::loss, budget);
        let leaf = Tensor::<1>::zeros([1], &device()).require_grad();
        drop(leaf.backward());
        let bytes = planned.map_or(0, |plan| plan.device_bytes);
        (BYTES.current_usage(), bytes)
    };
    // Threads of the backend keep some buffers.
    of(ENOUGH);
    let (before, most) = of(ENOUGH);
    for part in 1..9 {
        let (after, _) = of(most - most * part / 20);
        let left = after.saturating_sub(before);
        assert!(left < 8192, "{left} bytes after {part} parts less");
    }
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}

/// Exact clipping in a buffer holds all gradients at once, also without micro-batches. Where the buffer is full, activations are
/// freed: the plan counts both.
#[test]
fn plan_with_average_or_buffer_counts_its_bytes() {
    alone!();
    let averaging = FusedConfig::averaging(WeightAveragingConfig::new());
    let in_buffer = GlobalNormClippingConfig::ExactInBuffer(1.0);
    let in_buffer = FusedConfig::new().with_clipping(Some(in_buffer));
    for (config, range) in [(averaging, 0.99..=1.1), (in_buffer, 1.0..=1.2)] {
        let planner = planner::<Mlp>().with_config(config);
        let plan = planner.plan(Mlp::loss, ENOUGH).unwrap();
        assert_eq!(plan.accumulation, 1);
        let bytes = trained::<Mlp, _>(&plan);
        let ratio = plan.device_bytes as f64 / bytes as f64;
        assert!(range.contains(&ratio), "{plan}: {ratio:.3}");
    }
}

/// A gradient that is checked, multiplied or added takes more than itself for a moment.
#[test]
fn plan_with_policies_holds() {
    alone!();
    let new = FusedConfig::new;
    let scaling = LossScalingConfig::new();
    let skips = scaling.with_overflow(Overflow::SkipParameter);
    let clipped = GlobalNormClippingConfig::Lagged(1e-3);
    let averaging = WeightAveragingConfig::new().with_decay(Some(0.9));
    for (dtype, config) in [
        (FloatDType::F32, new()),
        (FloatDType::F32, new().with_loss_scaling(Some(skips))),
        (FloatDType::BF16, new()),
        (FloatDType::BF16, new().with_clipping(Some(clipped))),
        (FloatDType::BF16, new().with_loss_scaling(Some(skips))),
        (FloatDType::BF16, new().with_averaging(Some(averaging))),
    ] {
        let init = || {
            let linear = LinearConfig::new(1024, 1024).with_bias(false);
            cast(linear.init(&device()), dtype).unwrap()
        };
        let loss = |model: &Linear, items: usize| {
            let x = Tensor::<2>::ones([items, 1024], &device()).cast(dtype);
            model.forward(x).mean()
        };
        let planner = Planner::new(init, AdamWConfig::new()).with_batch(2);
        let plan = planner.with_config(config).plan(loss, ENOUGH).unwrap();
        let train = || {
            let mut fused = plan.fuse(init).unwrap();
            for _ in 0..3 {
                fused.step(1e-3, |model| loss(model, plan.batch)).unwrap();
            }
        };
        let bytes = peak(train).1;
        let ratio = plan.device_bytes as f64 / bytes as f64;
        assert!(
            (1.0..=1.05).contains(&ratio),
            "{dtype:?}, {plan}: {ratio:.3}"
        );
    }
}

/// The first update copies the weights that `init` holds.
#[test]
fn weights_that_maker_holds_are_counted_twice() {
    alone!();
    let model = init::<Bag>();
    let init = || model.clone();
    let planner = Planner::new(init, AdamWConfig::new()).with_batch(Bag::BATCH);
    let plan = |budget| {
        let (plan, taken) = peak(|| planner.plan(Bag::loss, budget));
        let within = plan.is_err() || taken <= budget;
        assert!(within, "planning took {taken} of {budget}");
        plan
    };
    let fixed = fixed();
    let most = plan(ENOUGH).unwrap().device_bytes - fixed;
    for percent in [100, 90, 85, 50] {
        let budget = fixed + most * percent / 100;
        let Ok(plan) = plan(budget) else {
            assert_eq!(percent, 50, "nothing fits");
            continue;
        };
        let train = || {
            let mut fused = plan.fuse(init).unwrap();
            for _ in 1..plan.accumulation {
                fused.accumulate(|model| model.loss(plan.batch)).unwrap();
            }
            fused.step(1e-3, |model| model.loss(plan.batch)).unwrap();
            fused.step(1e-3, |model| model.loss(plan.batch)).unwrap();
        };
        let bytes = peak(train).1;
        assert!(bytes <= budget, "{bytes} of {budget}\n{plan}");
    }
}

/// Trains the plan of this model for three steps. Panics if they take more than the planned bytes.
#[track_caller]
fn assert_holds<M: Module>(
    init: impl Fn() -> M,
    batch: usize,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) {
    let planner = Planner::new(&init, AdamWConfig::new()).with_batch(batch);
    let plan = planner.plan(&loss, ENOUGH).unwrap();
    let bytes = peak(|| {
        let mut fused = plan.fuse(&init).unwrap();
        for _ in 0..3 {
            fused.step(1e-3, |model| loss(model, plan.batch)).unwrap();
        }
    });
    assert!(bytes.1 <= plan.device_bytes, "{} bytes\n{plan}", bytes.1);
}

/// The base of an adapter is an ordinary leaf, which the module holds between two steps.
#[test]
fn shared_trained_base_is_counted_twice() {
    alone!();
    let base: Linear = LinearConfig::new(1024, 1024)
        .with_bias(false)
        .init(&device());
    let model = base.apply_lora(Lora::new(2, 4.0)).unfreeze();
    let init = || model.clone();
    let loss = |model: &Linear, items: usize| {
        model
            .forward(Tensor::<2>::ones([items, 1024], &device()))
            .mean()
    };
    assert_holds(init, 2, loss);
}

#[test]
fn shared_weights_are_counted_twice_beside_new_tensors() {
    alone!();
    let layer: Linear = LinearConfig::new(512, 2048).init(&device());
    drop(layer.valid());
    // The table is created again, so `init` allocates as many bytes as the model has.
    let table = RotaryEncodingConfig::new(2048, 512);
    let init = || (layer.clone(), table.init(&device()));
    let loss = |(layer, _): &(Linear, RotaryEncoding), items: usize| {
        layer
            .forward(Tensor::<2>::ones([items, 512], &device()))
            .mean()
    };
    assert_holds(init, 4, loss);
}

/// The largest gradient is complete at the peak, and a copy of it in f32 is multiplied, or added to the sum.
#[test]
fn copies_of_half_gradients_in_f32_are_counted() {
    alone!();
    type Model = (Embedding, Linear);
    let init = || -> Model {
        let embedding = EmbeddingConfig::new(65_536, 64).init(&device());
        let model = (embedding, LinearConfig::new(64, 64).init(&device()));
        cast(model, FloatDType::BF16).unwrap()
    };
    let skips = LossScalingConfig::new().with_overflow(Overflow::SkipParameter);
    for (config, order, length, parts) in [
        (
            FusedConfig::new().with_loss_scaling(Some(skips)),
            &[][..],
            8,
            1,
        ),
        (
            FusedConfig::new().with_full_precision_accumulation(true),
            &[Technique::MicroBatches][..],
            8192,
            16,
        ),
    ] {
        let loss = |(embedding, head): &Model, items: usize| {
            let tokens = Tensor::<2, Int>::zeros([items, length], &device());
            head.forward(embedding.forward(tokens)).tanh().mean()
        };
        let planner = Planner::new(init, AdamWConfig::new()).with_batch(16);
        let planner = planner.with_config(config).with_order(order);
        let candidates = planner.plan(loss, ENOUGH).unwrap().candidates;
        let least = candidates.iter().map(|it| it.device_bytes).min().unwrap();
        let plan = planner.plan(loss, least + 100_000).unwrap();
        assert_eq!(plan.accumulation, parts, "{plan}");
        let train = || {
            let mut fused = plan.fuse(init).unwrap();
            for _ in 0..3 {
                for _ in 1..parts {
                    fused.accumulate(|model| loss(model, plan.batch)).unwrap();
                }
                fused.step(1e-3, |model| loss(model, plan.batch)).unwrap();
            }
        };
        let bytes = peak(train).1;
        assert!(bytes <= plan.device_bytes, "{bytes} bytes\n{plan}");
    }
}

/// An update copies no frozen weight.
#[test]
fn frozen_weights_that_maker_holds_are_counted_once() {
    alone!();
    let layer = |size| LinearConfig::new(64, size).init(&device());
    let base: Linear = layer(1 << 14);
    let model = (base.clone().no_grad(), base.no_grad(), layer(64));
    let init = || model.clone();
    let loss = |(_, _, layer): &(Linear, Linear, Linear), items: usize| {
        let x = Tensor::<2>::ones([items, 64], &device());
        layer.forward(x).mean()
    };
    let plan = Planner::new(init, AdamWConfig::new())
        .plan(loss, ENOUGH)
        .unwrap();
    let train = || {
        let mut fused = plan.fuse(init).unwrap();
        for _ in 0..2 {
            fused.step(1e-3, |model| loss(model, plan.batch)).unwrap();
        }
    };
    let ratio = plan.device_bytes as f64 / peak(train).1 as f64;
    assert!((1.0..=1.2).contains(&ratio), "{ratio:.3}\n{plan}");
}
