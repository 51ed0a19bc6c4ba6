//! Reads, saves and changes of a model without values are right, or an error by name.

use std::sync::{Arc, Mutex};

use super::*;

fn model_cloned_out_of_step_saves_its_values(device: &Device) {
    let mut fused = adamw(Mlp::init(device));
    let x = &xs(device, 1)[0];
    let (_, cloned) = fused
        .step(RATE, |model| (loss(model, x), model.clone()))
        .unwrap();
    let saved = Mlp::init(device).load_record(cloned.into_record());
    assert_equal_weights(&fused.model(), &saved);

    // In the closure it saves the values from before the step.
    let before = fused.model();
    let (_, record) = fused
        .step(RATE, |model| (loss(model, x), model.clone().into_record()))
        .unwrap();
    let saved = Mlp::init(device).load_record(record);
    assert_equal_weights(&before, &saved);
}

on_every_backend!(model_cloned_out_of_step_saves_its_values);

struct Penalty(Vec<Tensor<1>>);

impl ModuleVisitor for Penalty {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.val().powi_scalar(2).sum());
    }
}

/// Panics unless the step panics with all these words, and leaves the weights.
#[track_caller]
fn assert_panics(words: &[&str], forward: impl Fn(&Mlp, &Tensor<2>) -> Tensor<1>) {
    let mut fused = sgd(Mlp::init(&flex()));
    let x = &xs(&flex(), 1)[0];
    let before = weights(&fused.model());
    let message = panic_of(|| fused.step(RATE, |model| forward(model, x)).unwrap());
    for word in words {
        assert_says(&message, word);
    }
    assert_eq!(weights(&fused.model()), before);
}

#[test]
fn read_around_val_is_an_error_by_name() {
    let reads: [fn(&Mlp) -> Tensor<1>; 4] = [
        |model| model.input.weight.base().abs().sum(),
        |model| model.input.weight.clone().into_value().sum(),
        |model| {
            let logged: f32 = model.input.weight.to_data().iter::<f32>().sum();
            Tensor::from_data([logged], &flex())
        },
        |model| {
            let mut penalty = Penalty(Vec::new());
            model.visit(&mut penalty);
            Tensor::cat(penalty.0, 0).sum()
        },
    ];
    let around = "parameter `input.weight` was read around";
    for read in reads {
        assert_panics(&[around, "by a visitor"], |model, x| {
            loss(model, x) + read(model) * 1e-3
        });
    }
    let in_block = "the first run of the recomputed block";
    assert_panics(&[around, in_block], |model, x| {
        let run = |input: &Linear, x: Tensor<2>| {
            input.forward(x) * input.weight.base().mean().unsqueeze()
        };
        let x = gradient_checkpointing(&model.input, x.clone(), run);
        model.output.forward(x).mean()
    });
    // Inference may read it.
    let (_, norm) = sgd(Mlp::init(&flex()))
        .step(RATE, |model| {
            let norm = model.valid().output.weight.val().powi_scalar(2).sum();
            (loss(model, &xs(&flex(), 1)[0]), norm)
        })
        .unwrap();
    assert!(norm.into_scalar::<f32>().is_finite());
}

#[test]
fn mapped_parameter_in_closure_names_way_that_works() {
    let mapped: [fn(Tensor<2>) -> Tensor<2>; 2] = [Tensor::transpose, |value| value * 2.0];
    for map in mapped {
        assert_panics(&["`Param::map`", "val().transpose()"], |model, x| {
            loss(model, x) + model.input.weight.clone().map(map).val().sum()
        });
    }
}

/// A permutation of the elements.
struct Flip;

impl ModuleMapper for Flip {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value.flip([0]))
    }
}

/// On the CPU, where the backend can distinguish tensors.
#[test]
fn clone_mapped_or_loaded_in_closure_is_refused() {
    for device in cpus() {
        let x = &xs(&device, 1)[0];
        let record = || Mlp::init(&device).into_record();
        let full = |value: Tensor<1>| Tensor::full(value.shape(), 0.1, &value.device());
        let perturbed = |model: Mlp| map_values(model, |_, value| full(value));
        let loaded = |model: Mlp| model.load_record(record());
        let flipped = |model: Mlp| model.map(&mut Flip);
        let changes: [&dyn Fn(Mlp) -> Mlp; 3] = [&perturbed, &loaded, &flipped];
        for change in changes {
            let mut fused = sgd(Mlp::init(&device));
            let before = weights(&fused.model());
            let message = panic_of(|| {
                fused
                    .step(RATE, |model| loss(&change(model.clone()), x))
                    .unwrap()
            });
            assert_says(&message, "put.weight`");
            // On flex, a flip reads the placeholder.
            let ways = ["change_model", "around `Param::val()`"];
            assert!(ways.iter().any(|way| message.contains(way)), "{message}");
            assert_eq!(weights(&fused.model()), before);
        }
    }
}

#[test]
fn read_after_backward_names_what_to_read() {
    let x = &xs(&flex(), 1)[0];
    let mut fused = sgd(Mlp::init(&flex()));
    let mut step = |read: fn(&Mlp) -> Tensor<2>| {
        fused
            .step_with_backward(RATE, |model| {
                let gradients = loss(model, x).backward();
                let norm = read(model).powi_scalar(2).sum();
                (norm, GradientsParams::from_grads(gradients, model))
            })
            .unwrap()
    };
    let message = panic_of(|| step(|model| model.output.weight.val()));
    for words in ["`output.weight` was read again", "valid()", "GradientHook"] {
        assert_says(&message, words);
    }
    let norm = step(|model| model.valid().output.weight.val());
    assert!(norm.into_scalar::<f32>() > 0.0);
}

#[test]
fn hook_that_reads_model_is_an_error_by_name() {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let held: Arc<Mutex<Option<Mlp>>> = Arc::default();
        let read = held.clone();
        let reads = hook(move |_| {
            if let Some(model) = &*read.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) {
                let _norm = model.output.weight.val().powi_scalar(2).sum();
            }
            Answer::Use
        });
        let mut fused = sgd(Mlp::init(&flex())).with_hook(ParamGroup::all(), reads);
        let message = panic_of(|| {
            fused
                .step(RATE, |model| {
                    *held.lock().unwrap() = Some(model.clone());
                    loss(model, &xs(&flex(), 1)[0])
                })
                .unwrap()
        });
        sender.send(message).unwrap();
    });
    let message = receiver.recv_timeout(std::time::Duration::from_secs(60));
    let message = message.expect("it does not hang");
    assert_says(&message, "`output.weight` was read in a hook");
}
