//! Every mistake has an answer that names the parameter or the option, and nothing is lost.

use burn::optim::MuonConfig;

use crate::backends::on_every_backend;
use crate::common::*;
use crate::mlp::Mlp;

fn fused(device: &Device) -> FusedOptimizer<Mlp> {
    FusedOptimizer::new_ok(Mlp::init(device), AdamWConfig::new().init())
}

fn x(device: &Device) -> Tensor<2> {
    Tensor::random([5, 3], Distribution::Default, device)
}

/// Runs `mistake` after a good step and asserts that it panics with `words`, changes no parameter,
/// and that training goes on as if it had not been.
#[track_caller]
fn assert_refused(
    device: &Device,
    words: &[&str],
    mistake: impl Fn(&mut FusedOptimizer<Mlp>, Tensor<2>),
) {
    let (x, mut fused) = (x(device), fused(device));
    fused.step_ok(1e-2, |model| model.loss(x.clone()));
    let before = fused.model();
    let record = fused.to_record().into_bytes().unwrap();

    let message = panic_of(|| mistake(&mut fused, x.clone()));
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    assert_equal_weights(&before, &fused.model());
    assert_eq!(fused.to_record().into_bytes().unwrap().len(), record.len());

    let mut twin = FusedOptimizer::new_ok(before, AdamWConfig::new().init());
    twin.load_record_ok(fused.to_record());
    for fused in [&mut fused, &mut twin] {
        fused.step_ok(1e-2, |model| model.loss(x.clone()));
    }
    assert_equal_weights(&twin.model(), &fused.model());
}

fn a_model_without_autodiff(device: &Device) {
    let model = Mlp::init(&device.clone().inner());
    let error = FusedOptimizer::new(model.clone(), AdamWConfig::new().init()).unwrap_err();
    assert!(matches!(&error, FusedError::NotAutodiff { path, .. } if path == "input.weight"));

    // `unwrap` and a `main` that returns the error print its message.
    let message = panic_of(|| FusedOptimizer::new_ok(model, AdamWConfig::new().init()));
    assert!(message.ends_with(&error.to_string()), "{message}");
    assert_says(&message, "device.autodiff()");
}

fn one_parameter_at_two_places(device: &Device) {
    let input = LinearConfig::new(3, 3).init(device);
    let model = vec![input.clone(), input];
    let error = FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap_err();
    let FusedError::DuplicateParameter { first, second, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((first.as_str(), second.as_str()), ("0.weight", "1.weight"));
}

fn a_model_cloned_out_of_a_step(device: &Device) {
    let mut fused = fused(device);
    let mut escaped = None;
    fused.step_ok(1e-2, |model| {
        escaped = Some(model.clone());
        model.loss(x(device))
    });
    let escaped = escaped.unwrap();

    let message = panic_of(|| escaped.loss(x(device)));
    assert_says(&message, "`input.weight` was read outside");
    let error = FusedOptimizer::new(escaped, AdamWConfig::new().init()).unwrap_err();
    assert!(matches!(error, FusedError::AlreadyFused { path } if path == "input.weight"));
}

fn a_parameter_read_through_deref(device: &Device) {
    let words = ["`output.weight`", "Param::val()"];
    assert_refused(device, &words, |fused, x| {
        fused.step_ok(1e-2, |model| {
            let penalty = (*model.output.weight).clone().powi_scalar(2).mean();
            model.loss(x) + penalty
        });
    });
}

fn a_parameter_read_through_base(device: &Device) {
    assert_refused(device, &["`input.weight`", "Param::val()"], |fused, x| {
        fused.step_ok(1e-2, |model| {
            let x = x.matmul(model.input.weight.base()).tanh();
            model.output.forward(x).mean()
        });
    });
}

fn a_parameter_read_through_into_value(device: &Device) {
    assert_refused(device, &["`input.weight`", "Param::val()"], |fused, x| {
        fused.step_ok(1e-2, |model| {
            let weight = model.input.weight.clone().into_value();
            model.loss(x) + weight.mean()
        });
    });
}

fn a_loss_without_a_parameter(device: &Device) {
    let (x, mut fused) = (x(device), fused(device));
    let before = fused.model();

    let error = fused.step(1e-2, |_| x.clone().mean()).unwrap_err();
    assert_eq!(error, FusedError::LossNotTracked);
    let tracked = x.clone().require_grad();
    let error = fused.step(1e-2, |_| tracked.clone().mean()).unwrap_err();
    assert_eq!(error, FusedError::LossWithoutParameters { parameters: 4 });
    assert_equal_weights(&before, &fused.model());

    fused.step_ok(1e-2, |model| model.loss(x));
    assert_changed(&before, &fused.model(), |_| true);
}

fn a_loss_detached(device: &Device) {
    assert_refused(device, &["not tracked", "detached"], |fused, x| {
        fused.step_ok(1e-2, |model| model.loss(x).detach());
    });
}

fn a_backward_pass_inside_the_closure(device: &Device) {
    let words = ["backward was called inside", "unchanged"];
    assert_refused(device, &words, |fused, x| {
        fused.step_ok(1e-2, |model| {
            let loss = model.loss(x);
            loss.backward();
            loss
        });
    });
}

fn a_loss_consumed_before(device: &Device) {
    assert_refused(device, &["already been consumed"], |fused, x| {
        let weight = Tensor::<1>::ones([1], device).require_grad();
        let penalty = weight.clone() * weight;
        penalty.backward();
        fused.step_ok(1e-2, |model| model.loss(x) + penalty);
    });
}

fn a_panic_in_the_forward_closure(device: &Device) {
    assert_refused(device, &["the data ran out"], |fused, x| {
        fused.step_ok(1e-2, |model| {
            let _loss = model.loss(x);
            if true {
                panic!("the data ran out");
            }
            _loss
        });
    });
}

fn an_optimizer_that_refuses_a_parameter(device: &Device) {
    let (x, model) = (x(device), Mlp::init(device));
    let mut fused = FusedOptimizer::new_ok(model.clone(), MuonConfig::new().init());
    // Muon is for matrices, and the bias of the last layer is the first to be updated.
    let message = panic_of(|| fused.step_ok(1e-2, |model| model.loss(x)));
    assert_says(&message, "2D tensors, got 1D");
    assert_equal_weights(&model, &fused.model());
}

fn the_optimizer_record_of_another_model(device: &Device) {
    let x = x(device);
    let mut other = fused(device);
    other.step_ok(1e-2, |model| model.loss(x.clone()));

    let mut fused = fused(device);
    fused.step_ok(1e-2, |model| model.loss(x.clone()));
    let error = fused.load_record(other.to_record()).unwrap_err();
    let FusedError::ForeignRecord { path, .. } = &error else {
        panic!("{error}");
    };
    assert!(path.ends_with("put.weight") || path.ends_with("put.bias"));
    let message = panic_of(|| fused.load_record_ok(other.to_record()));
    assert_says(&message, "which the model does not have");

    // The state is still the model's own.
    let mut twin = FusedOptimizer::new_ok(fused.model(), AdamWConfig::new().init());
    twin.load_record_ok(fused.to_record());
    for fused in [&mut fused, &mut twin] {
        fused.step_ok(1e-2, |model| model.loss(x.clone()));
    }
    assert_equal_weights(&twin.model(), &fused.model());
}

fn the_optimizer_record_of_a_parameter_of_another_rank(device: &Device) {
    let vector = Param::from_tensor(Tensor::<1>::ones([3], device));
    let matrix = Param::initialized(vector.id, Tensor::<2>::ones([3, 3], device).require_grad());
    let mut of_vector = FusedOptimizer::new_ok(vector, AdamWConfig::new().init());
    of_vector.step_ok(1e-2, |vector| vector.val().mean());

    let mut of_matrix = FusedOptimizer::new_ok(matrix, AdamWConfig::new().init());
    let error = of_matrix.load_record(of_vector.to_record()).unwrap_err();
    let FusedError::RecordRank {
        expected, found, ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((expected, found), (2, 1));
}

fn a_clone_of_the_model_keeps_its_values(device: &Device) {
    let (x, mut fused) = (x(device), fused(device));
    fused.step_ok(1e-2, |model| model.loss(x.clone()));
    let kept = fused.model();
    let values = weights(&kept);
    fused.step_ok(1e-2, |model| model.loss(x.clone()));
    fused.step_ok(1e-2, |model| model.loss(x.clone()));

    assert_eq!(weights(&kept), values);
    assert_changed(&kept, &fused.model(), |_| true);
}

#[test]
fn a_kept_clone_is_told_by_the_step_that_copies() {
    let device = &Device::flex().autodiff();
    let (x, mut fused) = (x(device), fused(device));
    fused.step_ok(1e-2, |model| model.loss(x.clone()));
    fused.step_ok(1e-2, |model| model.loss(x.clone()));
    assert_eq!(fused.last_step().copied, Some(0));
    let kept = fused.model();
    fused.step_ok(1e-2, |model| model.loss(x.clone()));
    assert_eq!(fused.last_step().copied, Some(4));
    drop(kept);
    fused.step_ok(1e-2, |model| model.loss(x.clone()));
    assert_eq!(fused.last_step().copied, Some(0));
}

fn a_nan_loss_is_passed_on_as_in_stock(device: &Device) {
    let x = x(device);
    let loss = |model: &Mlp, _: usize| model.loss(x.clone()) * f32::NAN;
    let initial = Mlp::init(device);
    let stock = copy(&initial, || Mlp::init(device));
    let stock = train_stock(stock, &mut SgdConfig::new().init(), 1, 1e-2, loss);
    let mut fused = FusedOptimizer::new_ok(initial, SgdConfig::new().init());
    let nan = fused.step_ok(1e-2, |model| loss(model, 0));
    assert!(nan.into_scalar::<f32>().is_nan());
    for ((_, stock), (path, fused)) in weights(&stock).iter().zip(&weights(&fused.model())) {
        assert!(stock.iter::<f32>().all(f32::is_nan), "`{path}` in stock");
        assert!(fused.iter::<f32>().all(f32::is_nan), "`{path}` fused");
    }
}

#[test]
fn a_device_this_build_does_not_cover() {
    // Recorded, never run: a backend of Burn that has no training.
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
    a_model_without_autodiff,
    one_parameter_at_two_places,
    a_model_cloned_out_of_a_step,
    a_parameter_read_through_deref,
    a_parameter_read_through_base,
    a_parameter_read_through_into_value,
    a_loss_without_a_parameter,
    a_loss_detached,
    a_backward_pass_inside_the_closure,
    a_loss_consumed_before,
    a_panic_in_the_forward_closure,
    an_optimizer_that_refuses_a_parameter,
    the_optimizer_record_of_another_model,
    the_optimizer_record_of_a_parameter_of_another_rank,
    a_clone_of_the_model_keeps_its_values,
    a_nan_loss_is_passed_on_as_in_stock,
);

#[test]
fn a_memory_recording_without_its_allocator() {
    use backburn::memory::{MemoryError, MemoryRecorder};

    let error = MemoryRecorder::start().unwrap_err();
    assert!(matches!(error, MemoryError::NotInstalled));
    assert!(error.to_string().contains("#[global_allocator]"));
}

#[test]
fn a_parameter_of_more_dimensions_than_an_optimizer_knows_is_an_error_by_name() {
    #[derive(Module, Debug)]
    struct Deep {
        deep: Param<Tensor<9>>,
    }

    let device = Device::flex().autodiff();
    let deep = Param::from_tensor(Tensor::zeros([1; 9], &device));
    let error = FusedOptimizer::new(Deep { deep }, SgdConfig::new().init()).unwrap_err();
    assert!(matches!(&error, FusedError::UnsupportedParameter { path, .. } if path == "deep"));
    assert_says(&error, "up to 8 dimensions");
}
