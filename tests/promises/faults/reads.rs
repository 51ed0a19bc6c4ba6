//! Reads, saves and changes of a model without values are right, or an error by name.

use std::sync::{Arc, Mutex};

use super::*;
use crate::backends::on_every_backend;

fn a_model_cloned_out_of_a_step_saves_its_values(device: &Device) {
    let mut fused = FusedOptimizer::new_ok(Mlp::init(device), AdamWConfig::new().init());
    let x = &xs(device, 1)[0];
    let (_, cloned) = fused.step_ok(RATE, |model| (model.loss(x.clone()), model.clone()));
    let saved = Mlp::init(device).load_record(cloned.into_record());
    assert_equal_weights(&fused.model(), &saved);

    // In the closure it saves those of before.
    let before = fused.model();
    let (_, record) = fused.step_ok(RATE, |model| {
        (model.loss(x.clone()), model.clone().into_record())
    });
    let saved = Mlp::init(device).load_record(record);
    assert_equal_weights(&before, &saved);
}

on_every_backend!(a_model_cloned_out_of_a_step_saves_its_values);

#[derive(Default)]
struct Penalty(Option<Tensor<1>>);

impl ModuleVisitor for Penalty {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let squares = param.val().powi_scalar(2).sum();
        self.0 = Some(match self.0.take() {
            Some(sum) => sum + squares,
            None => squares,
        });
    }
}

#[test]
fn a_read_around_val_is_an_error_by_name_where_it_happens() {
    let device = &flex();
    let x = &xs(device, 1)[0];
    let reads: [fn(&Mlp) -> Tensor<1>; 4] = [
        |model| model.input.weight.base().abs().sum(),
        |model| model.input.weight.clone().into_value().sum(),
        |model| {
            let logged: f32 = model.input.weight.to_data().iter::<f32>().sum();
            Tensor::from_data([logged], &flex())
        },
        |model| {
            let mut penalty = Penalty::default();
            model.visit(&mut penalty);
            penalty.0.unwrap()
        },
    ];
    for read in reads {
        let mut fused = FusedOptimizer::new_ok(Mlp::init(device), SgdConfig::new().init());
        let before = weights(&fused.model());
        let message =
            panic_of(|| fused.step_ok(RATE, |model| model.loss(x.clone()) + read(model) * 1e-3));
        assert_says(&message, "parameter `input.weight` was read around");
        assert_says(&message, "by a visitor");
        assert_eq!(weights(&fused.model()), before);
    }
    let mut fused = FusedOptimizer::new_ok(Mlp::init(device), SgdConfig::new().init());
    let message = panic_of(|| {
        fused.step_ok(RATE, |model| {
            let run = |input: &Linear, x: Tensor<2>| {
                input.forward(x) * input.weight.base().mean().unsqueeze()
            };
            model
                .output
                .forward(gradient_checkpointing(&model.input, x.clone(), run))
                .mean()
        })
    });
    assert_says(&message, "the first run of the recomputed block");
    assert_says(&message, "parameter `input.weight` was read around");
    // For inference, it may.
    let (_, norm) = fused.step_ok(RATE, |model| {
        let norm = model.valid().output.weight.val().powi_scalar(2).sum();
        (model.loss(x.clone()), norm)
    });
    assert!(norm.into_scalar::<f32>().is_finite());
}

#[test]
fn mapped_parameter_in_closure_names_the_way_that_works() {
    let device = &flex();
    let x = &xs(device, 1)[0];
    let mapped: [fn(Tensor<2>) -> Tensor<2>; 2] = [Tensor::transpose, |value| value * 2.0];
    for map in mapped {
        let mut fused = FusedOptimizer::new_ok(Mlp::init(device), SgdConfig::new().init());
        let read = |model: &Mlp| model.input.weight.clone().map(map).val().sum();
        let mut step = || fused.step(RATE, |model| model.loss(x.clone()) + read(model));
        let message = panic_of(|| step().unwrap());
        let names = message.contains("`Param::map`") && message.contains("val().transpose()");
        assert!(names, "{message}");
    }
}

/// Adds to every parameter.
struct Perturb(f32);

impl ModuleMapper for Perturb {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let by = self.0;
        param.map(|value| {
            let device = value.device().inner();
            let moved = Tensor::<D>::full(value.shape(), by, &device);
            Tensor::from_inner(moved).require_grad()
        })
    }
}

/// A permutation of the elements.
struct Flip;

impl ModuleMapper for Flip {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value.flip([0]))
    }
}

fn a_clone_that_is_mapped_or_loaded_in_the_closure_is_refused(device: &Device) {
    let x = &xs(device, 1)[0];
    let record = || Mlp::init(device).into_record();
    let perturbed = |model: Mlp| model.map(&mut Perturb(0.1));
    let loaded = |model: Mlp| model.load_record(record());
    let flipped = |model: Mlp| model.map(&mut Flip);
    let changes: [&dyn Fn(Mlp) -> Mlp; 3] = [&perturbed, &loaded, &flipped];
    for change in changes {
        let mut fused = FusedOptimizer::new_ok(Mlp::init(device), SgdConfig::new().init());
        let before = weights(&fused.model());
        let message =
            panic_of(|| fused.step_ok(RATE, |model| change(model.clone()).loss(x.clone())));
        assert_says(&message, "put.weight`");
        // A flip reads the placeholder on flex.
        let told = message.contains("change_model") || message.contains("around `Param::val()`");
        assert!(told, "{message}");
        assert_eq!(weights(&fused.model()), before);
    }
}

/// Where the backend tells one tensor from another.
#[test]
#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn a_clone_that_is_mapped_or_loaded_in_the_closure_is_refused_on_the_cpu() {
    for device in [flex(), Device::ndarray().autodiff()] {
        a_clone_that_is_mapped_or_loaded_in_the_closure_is_refused(&device);
    }
}

#[test]
fn a_read_after_the_backward_pass_names_what_to_read() {
    let device = &flex();
    let x = &xs(device, 1)[0];
    let mut fused = FusedOptimizer::new_ok(Mlp::init(device), SgdConfig::new().init());
    let message = panic_of(|| {
        fused.step_with_backward_ok(RATE, |model| {
            let gradients = model.loss(x.clone()).backward();
            let norm = model.output.weight.val().powi_scalar(2).sum();
            (norm, GradientsParams::from_grads(gradients, model))
        })
    });
    assert_says(&message, "`output.weight` was read again");
    assert_says(&message, "valid()");
    assert_says(&message, "GradientHook");
    let norm = fused.step_with_backward_ok(RATE, |model| {
        let gradients = model.loss(x.clone()).backward();
        let norm = model.valid().output.weight.val().powi_scalar(2).sum();
        (norm, GradientsParams::from_grads(gradients, model))
    });
    assert!(norm.into_scalar::<f32>() > 0.0);
}

#[test]
fn a_hook_that_reads_the_model_is_an_error_by_name() {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let device = &flex();
        let x = &xs(device, 1)[0];
        let held: Arc<Mutex<Option<Mlp>>> = Arc::default();
        let read = held.clone();
        let reads = hook(move |_| {
            if let Some(model) = &*read.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) {
                let _norm = model.output.weight.val().powi_scalar(2).sum();
            }
            Answer::Use
        });
        let mut fused = FusedOptimizer::new_ok(Mlp::init(device), SgdConfig::new().init())
            .with_hook(ParamGroup::all(), reads);
        let message = panic_of(|| {
            fused.step_ok(RATE, |model| {
                *held.lock().unwrap() = Some(model.clone());
                model.loss(x.clone())
            })
        });
        sender.send(message).unwrap();
    });
    let message = receiver.recv_timeout(std::time::Duration::from_secs(60));
    let message = message.expect("it does not hang");
    assert_says(&message, "`output.weight` was read in a hook");
}
