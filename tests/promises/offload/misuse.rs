//! What can't be is refused by name, and whatever fails leaves every weight and state of the last update.

use std::panic::{AssertUnwindSafe, catch_unwind};

use backburn::{FusedError, GlobalNormClippingConfig, GradientFlow, GradientHook, HookedParameter};
use burn::tensor::FloatDType;

use super::*;

fn refused(config: OffloadConfig, device: &Device, model: Network) -> String {
    let fused = FusedOptimizer::new(model, AdamConfig::new().init());
    let refused = fused.try_with_offload(config, device);
    let error = refused.expect_err("it is refused");
    assert!(matches!(error, FusedError::Offload { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn the_host_is_no_device_to_offload_from() {
    let device = Device::flex();
    let model = Network::init(&device.clone().autodiff());
    let error = refused(OffloadConfig::new(Offload::Updates), &device, model);
    assert!(error.contains("the host itself"), "{error}");
}

fn options_that_contradict_each_other_are_refused(device: &Device) {
    let bf16 = config(device, Offload::States).with_compute_dtype(Some(FloatDType::BF16));
    let error = refused(bf16, device, Network::init(device));
    assert!(
        error.contains("`Offload::Updates` for a `compute_dtype`"),
        "{error}"
    );

    for part in [-0.5, 1.5, f64::NAN] {
        let blocks = Offload::Weights(WaitingBlocks::Fraction(part));
        let error = refused(config(device, blocks), device, Network::init(device));
        assert!(error.contains("from 0 to 1"), "{error}");
    }

    let accumulates = FusedOptimizer::accumulating_in_state(
        Network::init(device),
        optim::AdamWConfig::new().build(),
    );
    let error = accumulates.try_with_offload(config(device, Offload::States), device);
    let error = error.err().unwrap().to_string();
    assert!(error.contains("accumulate in a buffer"), "{error}");
}

fn a_state_that_would_lose_digits_is_refused(device: &Device) {
    if !device.supports_dtype(burn::tensor::DType::F64) {
        return;
    }
    let weight = Tensor::<2>::ones([8, 8], (device, burn::tensor::DType::F64));
    let model = burn::module::Param::from_tensor(weight);
    let fused = FusedOptimizer::new(model, AdamConfig::new().init());
    let error = fused.try_with_offload(config(device, Offload::States), device);
    let error = error.err().unwrap().to_string();
    assert!(error.contains("F64") && error.contains("in f32"), "{error}");
}

/// Panics at the gradient of one parameter.
struct Panic(&'static str);

impl GradientHook for Panic {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        assert_ne!(parameter.path, self.0, "at this one");
        GradientFlow::Continue(gradient)
    }
}

/// A panic in the closure, in a block's first and second run, and in a hook.
fn a_panic_anywhere_leaves_what_was(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    for mode in modes(device) {
        let fuse = || {
            FusedOptimizer::new(
                copy(&initial, || Network::init(device)),
                AdamConfig::new().init(),
            )
            .with_offload(config(device, mode), device)
        };
        let mut untouched = fuse();
        train_fused(&mut untouched, 4, RATE, loss);

        let mut fused = fuse();
        train_fused(&mut fused, 2, RATE, loss);
        let panics = [
            panic_of(|| {
                fused
                    .clone()
                    .step(RATE, |_| -> Tensor<1> { panic!("in the closure") })
            }),
            panic_of(|| {
                fused.step(RATE, |model| {
                    let tokens = batches[2].clone();
                    let x: Tensor<2> = model.embedding.forward(tokens).flatten(0, 1);
                    let run = |block: &Block, x| -> Tensor<2> {
                        // The statistics are as they were.
                        block.expand.forward(x);
                        panic!("in a block")
                    };
                    gradient_checkpointing(&model.blocks[0], x, run).mean()
                })
            }),
        ];
        assert!(panics[0].contains("in the closure"), "{panics:?}");
        assert!(panics[1].contains("in a block"), "{panics:?}");
        train_fused(&mut fused, 2, RATE, |model, step| loss(model, step + 2));
        assert_equal_weights(&untouched.model(), &fused.model());

        let mut fused = fuse().with_hook(ParamGroup::all(), Panic("blocks.2.norm.gamma"));
        let text = panic_of(|| fused.step(RATE, |model| loss(model, 0)));
        assert!(text.contains("at this one"), "{text}");
        let expected = fuse();
        let after = [&expected, &fused].map(|fused| weights(&fused.model()));
        let unchanged = |path: &str| {
            let of = |weights: &[(String, burn::tensor::TensorData)]| {
                let found = weights.iter().find(|(found, _)| found == path);
                found.unwrap().1.as_bytes().to_vec()
            };
            of(&after[0]) == of(&after[1])
        };
        // Those whose gradient had not arrived, and the one itself.
        assert!(unchanged("blocks.2.norm.gamma"));
        assert!(unchanged("blocks.0.expand.weight"));
        assert!(unchanged("embedding.weight"));
    }
}

fn panic_of<R>(work: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(work))
        .err()
        .expect("it panics");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().unwrap().to_string(),
    }
}

/// A norm that is not finite stops a clipped step before anything is used.
fn a_step_that_is_stopped_changes_nothing(device: &Device) {
    let batches = batches(device);
    for mode in modes(device) {
        let mut fused = FusedOptimizer::new(Network::init(device), AdamConfig::new().init())
            .with_clipping(GlobalNormClippingConfig::Exact(1.0))
            .with_offload(config(device, mode), device);
        fused.step_repeatable(RATE, |model| model.loss(batches[0].clone()));
        let before = fused.model().valid();
        let stopped =
            fused.try_step_repeatable(RATE, |model| model.loss(batches[1].clone()) * f32::INFINITY);
        assert!(matches!(stopped, Err(FusedError::NormNotFinite { .. })));
        let after = fused.model().valid();
        for ((path, before), (_, after)) in weights(&before).iter().zip(&weights(&after)) {
            assert_eq!(before.as_bytes(), after.as_bytes(), "`{path}` has changed");
        }
        fused.step_repeatable(RATE, |model| model.loss(batches[2].clone()));
    }
}

/// A weight that a hook reads is refused by name, whichever thread calls the hook.
fn a_model_from_inference_is_not_trained(device: &Device) {
    let mode = Offload::Weights(WaitingBlocks::All);
    let fused = FusedOptimizer::new(Network::init(device), AdamConfig::new().init())
        .with_offload(config(device, mode), device);
    let again = FusedOptimizer::try_new(fused.valid().train(), AdamConfig::new().init());
    assert!(
        again.is_err(),
        "it would come over from the host without a gradient"
    );
}

on_every_backend!(
    options_that_contradict_each_other_are_refused,
    a_state_that_would_lose_digits_is_refused,
    a_panic_anywhere_leaves_what_was,
    a_step_that_is_stopped_changes_nothing,
    a_model_from_inference_is_not_trained,
);
