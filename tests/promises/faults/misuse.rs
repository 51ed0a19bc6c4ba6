//! Every mistake is an error that names the parameter or the option, and nothing is lost.

use burn::optim::MuonConfig;

use crate::common::mlp::Mlp;
use crate::common::*;

fn fused(device: &Device) -> FusedOptimizer<Mlp> {
    FusedOptimizer::new(Mlp::init(device), AdamWConfig::new().init()).unwrap()
}

fn x(device: &Device) -> Tensor<2> {
    Tensor::random([5, 3], Distribution::Default, device)
}

/// Runs a step with `mistake` after a valid step. Panics unless it panics with `words` and changes nothing, and
/// training continues as without it.
#[track_caller]
fn assert_refused(device: &Device, words: &[&str], mistake: impl Fn(&Mlp, Tensor<2>) -> Tensor<1>) {
    let (x, mut fused) = (x(device), fused(device));
    fused.step(1e-2, |model| model.loss(x.clone())).unwrap();
    let before = fused.model();
    let mut twin = resumed(&fused, AdamWConfig::new().init(), || Mlp::init(device));

    let message = panic_of(|| fused.step(1e-2, |model| mistake(model, x.clone())).unwrap());
    for word in words {
        assert_says(&message, word);
    }
    assert_equal_weights(&before, &fused.model());

    for fused in [&mut fused, &mut twin] {
        fused.step(1e-2, |model| model.loss(x.clone())).unwrap();
    }
    assert_equal_weights(&twin.model(), &fused.model());
}

fn model_without_autodiff_is_an_error(device: &Device) {
    let model = Mlp::init(&device.clone().inner());
    let error = FusedOptimizer::new(model.clone(), AdamWConfig::new().init()).unwrap_err();
    assert!(matches!(&error, FusedError::NotAutodiff { path, .. } if path == "input.weight"));

    // `unwrap` and a `main` that returns the error print its name and message.
    let message = panic_of(|| FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap());
    let end = format!("NotAutodiff: {error}");
    assert!(message.ends_with(&end), "{message}");
    assert_says(&message, "device.autodiff()");
}

fn parameter_at_two_places_is_an_error(device: &Device) {
    let input = LinearConfig::new(3, 3).init(device);
    let model = vec![input.clone(), input];
    let error = FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap_err();
    assert_matches!(error, FusedError::DuplicateParameter { first, second, .. }
        if first == "0.weight" && second == "1.weight");
}

fn model_cloned_out_of_step_is_not_read(device: &Device) {
    let mut fused = fused(device);
    let mut escaped = None;
    fused
        .step(1e-2, |model| {
            escaped = Some(model.clone());
            model.loss(x(device))
        })
        .unwrap();
    let escaped = escaped.unwrap();

    let message = panic_of(|| escaped.loss(x(device)));
    assert_says(&message, "`input.weight` was read outside");
    let error = FusedOptimizer::new(escaped, AdamWConfig::new().init()).unwrap_err();
    assert!(matches!(error, FusedError::AlreadyFused { path } if path == "input.weight"));
}

/// It would show the values of later steps. In its own step it is read.
fn model_cloned_in_earlier_step_is_not_read(device: &Device) {
    for convert in [Mlp::clone as fn(&Mlp) -> Mlp, Mlp::valid] {
        let (mut fused, mut old) = (fused(device), None);
        let mut step = || {
            fused.step(1e-2, |model| {
                convert(old.get_or_insert_with(|| model.clone()))
                    .input
                    .weight
                    .val();
                model.loss(x(device))
            })
        };
        step().unwrap();
        let message = panic_of(|| step().unwrap());
        assert_says(
            &message,
            "`input.weight` was read from a clone of the model",
        );
        let old = fused.model();
        for _ in 0..2 {
            let loss = |model: &Mlp| {
                old.input.weight.val();
                model.loss(x(device))
            };
            fused.step(1e-2, loss).unwrap();
        }
    }
}

/// The file would have the values of later steps.
fn model_converted_in_closure_is_not_saved_after_step(device: &Device) {
    let (mut fused, mut kept) = (fused(device), None);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("best");
    fused
        .step(1e-2, |model| {
            let valid = model.valid();
            valid.clone().into_record().save(&path).unwrap();
            kept = Some(valid);
            model.loss(x(device))
        })
        .unwrap();
    let message = panic_of(|| kept.unwrap().into_record().save(&path).unwrap());
    assert_says(
        &message,
        "`input.weight` was saved from a model that was converted",
    );
    fused.valid().into_record().save(&path).unwrap();
}

/// It would show the values of later steps. In its own step it is read.
fn model_converted_in_earlier_step_is_not_read(device: &Device) {
    type Convert = fn(&Mlp) -> Mlp;
    let no_grad: Convert = |model| model.clone().no_grad();
    for (convert, again) in [
        (Mlp::valid as Convert, Mlp::clone as Convert),
        (Mlp::valid, Mlp::valid),
        (no_grad, Mlp::clone),
    ] {
        let (mut fused, mut kept) = (fused(device), None);
        let mut step = || {
            fused.step(1e-2, |model| {
                let teacher = again(kept.get_or_insert_with(|| convert(model)));
                teacher.input.weight.val();
                model.loss(x(device))
            })
        };
        step().unwrap();
        let message = panic_of(|| step().unwrap());
        assert_says(
            &message,
            "`input.weight` was read from a model that was converted",
        );
        let message = panic_of(|| kept.unwrap().input.weight.val());
        assert_says(&message, "`FusedOptimizer::model()` between steps");
    }
}

/// A clone of the model in the closure has no values of its own, and neither has what it is converted to.
fn clone_converted_after_step_keeps_its_values_or_panics(device: &Device) {
    for convert in [Mlp::valid, |model: &Mlp| model.clone().no_grad()] {
        let (mut fused, mut cloned) = (fused(device), None);
        let mut step = |cloned: &mut Option<Mlp>| {
            let loss = |model: &Mlp| {
                *cloned = Some(model.clone());
                model.loss(x(device))
            };
            fused.step(1e-2, loss).unwrap();
            fused.model()
        };
        let before = step(&mut cloned);
        let kept = convert(&cloned.take().unwrap());
        let read = || kept.input.weight.val().inner().into_data();
        assert_eq!(read(), before.input.weight.val().inner().into_data());
        step(&mut cloned);
        let message = panic_of(read);
        assert_says(
            &message,
            "`input.weight` was read from a model that was converted",
        );
    }
}

fn clone_of_changed_model_is_not_read(device: &Device) {
    let (mut fused, mut kept) = (fused(device), None);
    let x = x(device);
    let before = fused.step(1e-2, |model| {
        kept = Some(model.clone());
        model.loss(x.clone())
    });
    before.unwrap();
    fused.change_model(|model| model).unwrap();
    let before = fused.model();
    let kept = kept.unwrap();
    let message = panic_of(|| fused.step(1e-2, |_| kept.loss(x.clone())).unwrap());
    assert_says(
        &message,
        "`input.weight` was read outside of a training step",
    );
    assert_equal_weights(&before, &fused.model());
}

type Loss = fn(&Mlp, Tensor<2>) -> Tensor<1>;

fn mistakes_in_step_are_refused_and_change_nothing(device: &Device) {
    let mistakes: [(&[&str], Loss); 8] = [
        (&["`output.weight`", "Param::val()"], |model, x| {
            let penalty = (*model.output.weight).clone().powi_scalar(2).mean();
            model.loss(x) + penalty
        }),
        (&["`input.weight`", "Param::val()"], |model, x| {
            let x = x.matmul(model.input.weight.base()).tanh();
            model.output.forward(x).mean()
        }),
        (&["`input.weight`", "Param::val()"], |model, x| {
            let weight = model.input.weight.clone().into_value();
            model.loss(x) + weight.mean()
        }),
        (&["not tracked", "detach the loss"], |model, x| {
            model.loss(x).detach()
        }),
        (&["backward was called inside", "unchanged"], |model, x| {
            let loss = model.loss(x);
            loss.backward();
            loss
        }),
        (&["backward was called inside", "unchanged"], |model, x| {
            let (weight, loss) = (model.input.weight.val(), model.loss(x));
            let gradient = weight.grad(&loss.backward());
            loss * gradient.expect("no gradient").mean().into_scalar::<f32>()
        }),
        (&["already been consumed"], |model, x| {
            let weight = Tensor::<1>::ones([1], &x.device()).require_grad();
            let penalty = weight.clone() * weight;
            penalty.backward();
            model.loss(x) + penalty
        }),
        (&["the data ran out"], |model, x| {
            let loss = model.loss(x);
            assert!(loss.dims()[0] == 0, "the data ran out");
            loss
        }),
    ];
    for (words, mistake) in mistakes {
        assert_refused(device, words, mistake);
    }
}

fn loss_without_parameter_is_an_error(device: &Device) {
    let (x, mut fused) = (x(device), fused(device));
    let before = fused.model();

    let error = fused.step(1e-2, |_| x.clone().mean()).unwrap_err();
    assert_eq!(error, FusedError::LossNotTracked);
    let tracked = x.clone().require_grad();
    let error = fused.step(1e-2, |_| tracked.clone().mean()).unwrap_err();
    assert_eq!(error, FusedError::LossWithoutParameters { parameters: 4 });
    assert_equal_weights(&before, &fused.model());

    // Neither are accumulated gradients applied.
    fused.accumulate(|model| model.loss(x.clone())).unwrap();
    let nothing = |_: &Mlp| tracked.clone().mean();
    for error in [
        fused.step(1e-2, nothing).unwrap_err(),
        fused.dry_run(nothing).unwrap_err(),
    ] {
        assert_eq!(error, FusedError::LossWithoutParameters { parameters: 4 });
        assert_equal_weights(&before, &fused.model());
    }
    fused.step_accumulated(1e-2).unwrap();
    assert_changed(&before, &fused.model(), |_| true);
}

fn optimizer_that_refuses_parameter_changes_nothing(device: &Device) {
    let (x, model) = (x(device), Mlp::init(device));
    let mut fused = FusedOptimizer::new(model.clone(), MuonConfig::new().init()).unwrap();
    // Muon is for matrices, and the bias of the last layer is the first to be updated.
    let message = panic_of(|| fused.step(1e-2, |model| model.loss(x)).unwrap());
    assert_says(&message, "2D tensors, got 1D");
    assert_equal_weights(&model, &fused.model());
}

fn optimizer_record_of_another_model_is_an_error(device: &Device) {
    let x = x(device);
    let mut other = fused(device);
    other.step(1e-2, |model| model.loss(x.clone())).unwrap();

    let mut fused = fused(device);
    fused.step(1e-2, |model| model.loss(x.clone())).unwrap();
    let mut twin = resumed(&fused, AdamWConfig::new().init(), || Mlp::init(device));
    let error = fused.load_record(other.to_record()).unwrap_err();
    assert_matches!(error, FusedError::ForeignRecord { path, .. }
        if path.ends_with("put.weight") || path.ends_with("put.bias"));
    let message = panic_of(|| fused.load_record(other.to_record()).unwrap());
    assert_says(&message, "which the model does not have");

    // The state still belongs to the model.
    for fused in [&mut fused, &mut twin] {
        fused.step(1e-2, |model| model.loss(x.clone())).unwrap();
    }
    assert_equal_weights(&twin.model(), &fused.model());
}

fn optimizer_record_of_another_rank_is_an_error(device: &Device) {
    let vector = Param::from_tensor(Tensor::<1>::ones([3], device));
    let matrix = Param::initialized(vector.id, Tensor::<2>::ones([3, 3], device).require_grad());
    let mut of_vector = FusedOptimizer::new(vector, AdamWConfig::new().init()).unwrap();
    of_vector.step(1e-2, |vector| vector.val().mean()).unwrap();

    let mut of_matrix = FusedOptimizer::new(matrix, AdamWConfig::new().init()).unwrap();
    let error = of_matrix.load_record(of_vector.to_record()).unwrap_err();
    let FusedError::RecordRank {
        expected, found, ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((expected, found), (2, 1));
}

fn model_clone_keeps_its_values(device: &Device) {
    let (x, mut fused) = (x(device), fused(device));
    fused.step(1e-2, |model| model.loss(x.clone())).unwrap();
    let kept = fused.model();
    let values = weights(&kept);
    fused.step(1e-2, |model| model.loss(x.clone())).unwrap();
    fused.step(1e-2, |model| model.loss(x.clone())).unwrap();

    assert_eq!(weights(&kept), values);
    assert_changed(&kept, &fused.model(), |_| true);
}

#[test]
fn model_clone_is_reported_by_step_that_copies() {
    let device = &Device::flex().autodiff();
    let (x, mut fused) = (x(device), fused(device));
    fused.step(1e-2, |model| model.loss(x.clone())).unwrap();
    fused.step(1e-2, |model| model.loss(x.clone())).unwrap();
    assert_eq!(fused.last_step().copied, Some(0));
    let kept = fused.model();
    fused.step(1e-2, |model| model.loss(x.clone())).unwrap();
    assert_eq!(fused.last_step().copied, Some(4));
    drop(kept);
    fused.step(1e-2, |model| model.loss(x.clone())).unwrap();
    assert_eq!(fused.last_step().copied, Some(0));
}

fn nan_loss_is_passed_on_as_in_stock(device: &Device) {
    let x = x(device);
    let loss = |model: &Mlp, _: usize| model.loss(x.clone()) * f32::NAN;
    let initial = Mlp::init(device);
    let stock = copy(&initial, || Mlp::init(device));
    let stock = train_stock(stock, &mut SgdConfig::new().init(), 1, 1e-2, loss);
    let mut fused = FusedOptimizer::new(initial, SgdConfig::new().init()).unwrap();
    let nan = fused.step(1e-2, |model| loss(model, 0)).unwrap();
    assert!(nan.into_scalar::<f32>().is_nan());
    for model in [stock, fused.model()] {
        assert!(elements(&model).into_iter().all(f64::is_nan));
    }
}

#[test]
fn device_that_build_does_not_cover_is_an_error() {
    // A backend of Burn without training, which records operations but does not run them.
    let device = Device::capture().autodiff();
    let mut error = None;
    let _ = device.clone().inner().capture_scope(|scope| {
        let weight = Param::from_tensor(Tensor::<1>::ones([2], &device));
        error = FusedOptimizer::new(weight, SgdConfig::new().init()).err();
        scope.complete([], [])
    });
    let error = error.expect("the device is refused");
    assert_matches!(error, FusedError::BackendNotCovered { .. });
}

on_every_backend!(
    mistakes_in_step_are_refused_and_change_nothing,
    model_without_autodiff_is_an_error,
    parameter_at_two_places_is_an_error,
    model_cloned_out_of_step_is_not_read,
    model_cloned_in_earlier_step_is_not_read,
    model_converted_in_closure_is_not_saved_after_step,
    model_converted_in_earlier_step_is_not_read,
    clone_converted_after_step_keeps_its_values_or_panics,
    clone_of_changed_model_is_not_read,
    loss_without_parameter_is_an_error,
    optimizer_that_refuses_parameter_changes_nothing,
    optimizer_record_of_another_model_is_an_error,
    optimizer_record_of_another_rank_is_an_error,
    model_clone_keeps_its_values,
    nan_loss_is_passed_on_as_in_stock,
);

#[test]
fn parameter_of_nine_dimensions_is_an_error_by_name() {
    #[derive(Module, Debug)]
    struct Deep {
        deep: Param<Tensor<9>>,
    }

    let device = Device::flex().autodiff();
    let deep = Param::from_tensor(Tensor::zeros([1; 9], &device));
    let error = FusedOptimizer::new(Deep { deep }, SgdConfig::new().init()).unwrap_err();
    assert_matches!(error, FusedError::UnsupportedParameter { path, .. } if path == "deep");
    assert_says(&error, "it has 9");
}
