//! Refusals of the planner, with their reasons.

use std::sync::Mutex;

use backburn::memory::{MemoryError, MemoryRecorder};
use backburn::optim::{AdamWConfig, LionConfig, MuonConfig};
use burn::config::Config;

use crate::common::*;
use crate::models::*;
use crate::{ENOUGH, alone, device, fixed, init, peak, plan, planner};

/// A layer and its loss.
fn layer(from: usize, to: usize) -> Linear {
    LinearConfig::new(from, to).init(&device())
}

fn loss_of(from: usize) -> impl Fn(&Linear, usize) -> Tensor<1> {
    move |model, items| {
        let x = Tensor::<2>::ones([items, from], &device());
        model.forward(x).mean()
    }
}

#[test]
fn unusable_input_is_refused_with_its_error() {
    use FusedError as E;
    use PlanError::Fused;

    alone!();
    let constant = |_: &Mlp, items: usize| Tensor::<1>::ones([items], &device()).mean();
    let leaf = |_: &Mlp, _| Tensor::<1>::ones([1], &device()).require_grad() * 2.0;
    let flex = Device::flex();
    let without_autodiff = Planner::new(|| Mlp::init(&flex), AdamWConfig::new()).with_batch(2);
    let frozen = Planner::new(|| init::<Mlp>().no_grad(), AdamWConfig::new()).with_batch(8);
    let empty = Planner::new(Vec::<Linear>::new, AdamWConfig::new()).with_batch(8);
    let of_empty = |_: &Vec<Linear>, items: usize| Tensor::<1>::ones([items], &device()).mean();
    let muon = Planner::new(|| layer(64, 64), MuonConfig::new()).plan(loss_of(64), ENOUGH);
    let split24 = AdamWConfig::new().with_weight_format(WeightFormat::Split24);
    let split24 = Planner::new(|| layer(64, 64), split24).plan(loss_of(64), ENOUGH);
    let no_batch = planner::<Mlp>().with_batch(0).plan(Mlp::loss, ENOUGH);
    type Is = fn(&PlanError) -> bool;
    let refused: &[(Option<PlanError>, Is)] = &[
        (
            plan::<Mlp>(0).err(),
            |it| matches!(it, PlanError::Invalid { reason } if reason.contains("budget is 0")),
        ),
        (plan::<Bag>(1).err(), |it| {
            matches!(it, PlanError::NothingFits { .. })
        }),
        (
            no_batch.err(),
            |it| matches!(it, PlanError::Invalid { reason } if reason.contains("batch has 0 items")),
        ),
        (planner::<Mlp>().plan(constant, ENOUGH).err(), |it| {
            matches!(it, Fused(E::LossNotTracked))
        }),
        (planner::<Mlp>().plan(leaf, ENOUGH).err(), |it| {
            matches!(it, Fused(E::LossWithoutParameters { .. }))
        }),
        (without_autodiff.plan(Mlp::loss, ENOUGH).err(), |it| {
            matches!(it, Fused(E::NotAutodiff { .. }))
        }),
        (frozen.plan(Mlp::loss, ENOUGH).err(), |it| {
            matches!(it, Fused(E::NothingTrained { .. }))
        }),
        (empty.plan(of_empty, ENOUGH).err(), |it| {
            matches!(it, Fused(E::LossNotTracked))
        }),
        (
            muon.err(),
            |it| matches!(it, Fused(E::UnsupportedParameter { path, .. }) if path == "bias"),
        ),
        (
            split24.err(),
            |it| matches!(it, Fused(E::UnsupportedParameter { path, .. }) if path == "weight"),
        ),
        #[cfg(feature = "cuda")]
        (
            planner::<Mlp>()
                .with_device(&Device::cuda(99))
                .plan(Mlp::loss, ENOUGH)
                .err(),
            |it| matches!(it, Fused(E::DeviceUnavailable { .. })),
        ),
    ];
    for (index, (error, is_expected)) in refused.iter().enumerate() {
        let error = error
            .as_ref()
            .unwrap_or_else(|| panic!("{index} is not refused"));
        assert!(is_expected(error), "{index}: {error}");
    }
    // No number is too large.
    plan::<Bag>(usize::MAX).unwrap();
}

#[test]
fn batch_of_one_that_does_not_fit_can_not_be_split() {
    alone!();
    let planner = planner::<Plain>().with_batch(1);
    let whole = planner.plan(Plain::loss, ENOUGH).unwrap();
    let budget = whole.device_bytes / 4;
    let error = planner.plan(Plain::loss, budget).unwrap_err();
    let PlanError::NothingFits { least, .. } = &error else {
        panic!("{error}");
    };
    planner.plan(Plain::loss, *least).unwrap();
    let missing = format!("{} more", least - budget);
    let words = ["can't be split", "is enough", "Freeze", "LoRA", "4 bits"];
    for words in words.into_iter().chain([&*missing]) {
        assert_says(&error, words);
    }
}

/// No pass over one item completes, or no weight is created.
#[test]
fn budget_below_item_or_weights_names_least_bytes() {
    alone!();
    let least_of = |refused: PlanError| match refused {
        PlanError::NothingFits { least, .. } => least,
        error => panic!("{error}"),
    };
    let of_item = 4 * 64 * 40_000;
    let planner = Planner::new(|| layer(64, 64), AdamWConfig::new());
    let loss = |model: &Linear, items: usize| {
        let x = Tensor::<2>::ones([40_000 * items, 64], &device());
        model.forward(x).tanh().mean()
    };
    let refused = planner.plan(loss, fixed() + of_item / 2).unwrap_err();
    let least = least_of(refused);
    assert!(least > of_item, "{least}");
    planner.plan(loss, least).unwrap();

    let weights = 4 * plan::<Bag>(ENOUGH).unwrap().model.elements;
    let before = peak(|| ()).1;
    let budget = before + weights / 2;
    let least = least_of(plan::<Bag>(budget).unwrap_err());
    assert!(least > before + weights, "{least}");
    plan::<Bag>(least).unwrap();
}

#[test]
fn plan_of_another_model_is_refused_by_difference() {
    alone!();
    let error = plan::<Bag>(ENOUGH).unwrap().fuse(init::<Mlp>).unwrap_err();
    assert_matches!(error, PlanError::AnotherModel { .. });
    assert_says(&error, "320264 elements");
    // The same number of elements in another shape.
    let without_bias = |from, to| {
        let config = LinearConfig::new(from, to).with_bias(false);
        move || config.init(&device())
    };
    let planner = Planner::new(without_bias(4, 6), AdamWConfig::new()).with_batch(2);
    let plan = planner.plan(loss_of(4), ENOUGH).unwrap();
    let refused = plan.fuse(without_bias(6, 4)).map(drop);
    assert_matches!(refused, Err(PlanError::AnotherModel { .. }));
}

#[test]
fn plan_edited_to_invalid_values_is_refused_by_field() {
    alone!();
    let whole = plan::<Bag>(ENOUGH).unwrap();
    let refused = |edit: fn(&mut Plan<AdamWConfig>), words: &str| {
        let mut plan = whole.clone();
        edit(&mut plan);
        assert_says(&plan.fuse(init::<Bag>).unwrap_err(), words);
    };
    refused(
        |plan| plan.accumulation = 0,
        "`accumulation` of the plan is 0",
    );
    let negative = |plan: &mut Plan<AdamWConfig>| {
        let scaling = LossScalingConfig::new().with_initial_scale(-1.0);
        plan.config.loss_scaling = Some(scaling);
    };
    refused(negative, "`initial_scale`");
    let offloads = |plan: &mut Plan<AdamWConfig>| {
        plan.config.offload = Some(OffloadConfig::new(Offload::States));
    };
    refused(offloads, "is the host itself");

    let formats = AdamWConfig::new().with_state_format(StateFormat::Bits8);
    let mut edited = Plan {
        optimizer: formats.with_weight_format(WeightFormat::Split24),
        ..whole
    };
    let step = |plan: &Plan<AdamWConfig>| {
        let mut fused = plan.fuse(init::<Bag>).unwrap();
        fused.step(1e-3, |model| model.loss(plan.batch)).unwrap();
    };
    let text = panic_of(|| step(&edited));
    for words in ["`embedding.weight`", "bf16", "backburn::cast"] {
        assert_says(&text, words);
    }
    edited.weights = Some(FloatDType::BF16);
    step(&edited);
    // Blocks and bytes that do not exist have no effect.
    edited.config.gradient_checkpointing.keep_activations = vec![false; 10_000];
    (edited.device_bytes, edited.taken) = (usize::MAX, 99);
    step(&edited);
    (edited.accumulation, edited.batch) = (usize::MAX, 2);
    assert_says(&edited, &usize::MAX.to_string());
}

#[test]
fn damaged_plan_file_is_refused_with_place() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let refused = || Plan::<AdamWConfig>::load(&file).map(drop).unwrap_err();
    refused();
    plan::<Bag>(ENOUGH).unwrap().save(&file).unwrap();
    let error = Plan::<LionConfig>::load(&file).unwrap_err();
    assert_says(&error, "`AdamWConfig`");
    assert_says(&error, "`LionConfig`");
    let text = std::fs::read_to_string(&file).unwrap();
    for damaged in ["", "{}", &text[..text.len() / 2]] {
        std::fs::write(&file, damaged).unwrap();
        refused();
    }
    for (from, to, words) in [
        ("\"hash\"", "\"hush\"", ""),
        ("\"weights\"", "\"weight\"", "unknown field `weight`"),
        ("\"AdamWConfig\"", "\"LionConfig\"", ""),
        ("\"batch\": 32", "\"batch\": -1", "integer `-1`"),
        ("\"batch\": 32", "\"batch\": 1.5", "floating point `1.5`"),
        ("\"weights\": null", "\"weights\": \"F7\"", "variant `F7`"),
        (
            "\"accumulation\": 1",
            "\"accumulation\": \"no\"",
            "string \"no\"",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let error = refused();
        assert_says(&error, words);
        assert_says(&error, if words.is_empty() { "" } else { "line" });
    }
}

fn is_refused_beside_recording() -> bool {
    let error = plan::<Bag>(ENOUGH).map(drop);
    matches!(error, Err(PlanError::Memory(MemoryError::AlreadyRecording)))
}

/// Between two passes of the first planner, nothing records.
#[test]
fn planner_during_recording_or_planner_is_refused() {
    static REFUSED: Mutex<Option<bool>> = Mutex::new(None);
    alone!();
    let recorder = MemoryRecorder::start().unwrap();
    assert!(is_refused_beside_recording());
    drop(recorder);
    let first = planner::<Bag>()
        .with_progress(|_| *REFUSED.lock().unwrap() = Some(is_refused_beside_recording()));
    first.plan(Bag::loss, ENOUGH).unwrap();
    assert_eq!(*REFUSED.lock().unwrap(), Some(true));
    // The panic of a planner is passed on and ends its recording.
    let panics = |model: &Bag, items: usize| match items {
        8 => panic!("eight items are too many"),
        _ => model.loss(items),
    };
    let text = panic_of(|| planner::<Bag>().plan(panics, ENOUGH).map(drop));
    assert_eq!(text, "eight items are too many");
    plan::<Bag>(ENOUGH).unwrap();
}

/// Weights in bf16 are tried after all others. Only a panic about their type is a reason to leave them out.
#[test]
fn panic_with_weights_in_bf16_is_passed_on_unless_it_names_type() {
    alone!();
    let order = [Technique::Blocks, Technique::MicroBatches];
    let whole = planner::<Mlp>().with_order(&order);
    let whole = whole.plan(Mlp::loss, ENOUGH).unwrap();
    let least = crate::bytes(&whole).into_iter().min().unwrap();
    let planner = planner::<Mlp>().with_order(&[order[0], order[1], Technique::Split24]);
    let plan = |message: &'static str| {
        let loss = move |model: &Mlp, items: usize| {
            let loss = model.loss(items);
            assert!(loss.dtype() != DType::BF16, "{message}");
            loss
        };
        planner.plan(loss, least - 250_000)
    };
    let text = panic_of(|| plan("the file of the items is missing"));
    assert_eq!(text, "the file of the items is missing");
    let error = plan("sum: unsupported dtype BF16").unwrap_err();
    assert_says(&error, "unsupported dtype BF16");
}

/// If no pass completes, it is unknown whether the model has blocks.
#[test]
fn advice_for_unmeasured_model_does_not_deny_blocks() {
    alone!();
    let fused = plan::<Recurrent>(ENOUGH).unwrap().device_bytes;
    let parts = [5, 20, 30, 40, 45].into_iter();
    let errors = parts.filter_map(|part| plan::<Recurrent>(fused * part / 100).err());
    let errors: Vec<_> = errors.map(|error| error.to_string()).collect();
    assert!(errors.len() > 1);
    for error in errors {
        assert!(!error.contains("No block"), "{error}");
    }
    let planner = planner::<Plain>().with_order(&[Technique::Blocks]);
    let whole = planner.plan(Plain::loss, ENOUGH).unwrap().device_bytes;
    let refused = planner.plan(Plain::loss, whole * 9 / 10);
    assert_says(&refused.unwrap_err(), "No block");
}
