//! An optimizer record is loaded whole, or refused with the parameter's name; nothing is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};

use backburn::optim as ours;
use burn::optim::*;

use crate::backends::on_every_backend;
use crate::common::*;

const RATE: f64 = 0.01;

type Make = Box<dyn Fn() -> ModuleOptimizer>;

/// Optimizers of which no two keep the same state.
fn unlike() -> Vec<(&'static str, Make)> {
    let momentum = || Some(MomentumConfig::new());
    vec![
        (
            "Sgd",
            Box::new(move || SgdConfig::new().with_momentum(momentum()).init()),
        ),
        ("AdamW", Box::new(|| AdamWConfig::new().init())),
        ("AdaGrad", Box::new(|| AdaGradConfig::new().init())),
        (
            "RmsProp",
            Box::new(|| RmsPropConfig::new().with_centered(true).init()),
        ),
        ("Adafactor", Box::new(|| AdafactorConfig::new().init())),
        ("Adan", Box::new(|| AdanConfig::new().init())),
        ("Lamb", Box::new(|| LambConfig::new().init())),
        ("Lion", Box::new(|| LionConfig::new().init())),
    ]
}

fn ours_unlike() -> Vec<(&'static str, Make)> {
    let momentum = || Some(MomentumConfig::new());
    vec![
        (
            "our Sgd",
            Box::new(move || ours::SgdConfig::new().with_momentum(momentum()).init()),
        ),
        ("our AdamW", Box::new(|| ours::AdamWConfig::new().init())),
        ("our Lion", Box::new(|| ours::LionConfig::new().init())),
    ]
}

/// More options, and optimizers by parameter group.
fn others() -> Vec<(&'static str, Make)> {
    let weights = || ParamGroup::from_predicate("weight");
    vec![
        ("plain Sgd", Box::new(|| SgdConfig::new().init())),
        ("our plain Sgd", Box::new(|| ours::SgdConfig::new().init())),
        ("Adam", Box::new(|| AdamConfig::new().init())),
        ("our Adam", Box::new(|| ours::AdamConfig::new().init())),
        (
            "AMSGrad",
            Box::new(|| AdamConfig::new().with_amsgrad(true).init()),
        ),
        (
            "our AMSGrad",
            Box::new(|| ours::AdamConfig::new().with_amsgrad(true).init()),
        ),
        (
            "RmsProp",
            Box::new(|| RmsPropConfig::new().with_momentum(0.5).init()),
        ),
        (
            "Muon beside AdamW",
            Box::new(move || {
                let muon = MuonConfig::new().build();
                AdamWConfig::new().init().with_group(weights(), muon, None)
            }),
        ),
        (
            "our Lion beside Adafactor",
            Box::new(move || {
                let lion = ours::LionConfig::new().build();
                AdafactorConfig::new()
                    .init()
                    .with_group(weights(), lion, None)
            }),
        ),
    ]
}

fn mlp(device: &Device) -> Vec<Linear> {
    let linear = |i, o| LinearConfig::new(i, o).init(device);
    vec![linear(3, 5), linear(5, 2)]
}

struct Training {
    initial: Vec<Linear>,
    x: Tensor<2>,
    device: Device,
}

impl Training {
    fn new(device: &Device) -> Self {
        Self {
            initial: mlp(device),
            x: Tensor::random([4, 3], Distribution::Default, device),
            device: device.clone(),
        }
    }

    fn fused(&self, optimizer: ModuleOptimizer) -> FusedOptimizer<Vec<Linear>> {
        FusedOptimizer::new_ok(copy(&self.initial, || mlp(&self.device)), optimizer)
    }

    fn step(&self, fused: &mut FusedOptimizer<Vec<Linear>>) {
        fused.step_ok(RATE, |model| {
            let x = model[0].forward(self.x.clone()).tanh();
            model[1].forward(x).powi_scalar(2).mean()
        });
    }
}

fn every_optimizer_loads_its_own_record(device: &Device) {
    let training = Training::new(device);
    for (name, optimizer) in unlike().into_iter().chain(ours_unlike()).chain(others()) {
        let mut through = training.fused(optimizer());
        training.step(&mut through);
        let mut resumed =
            FusedOptimizer::new_ok(copy(&through.model(), || mlp(device)), optimizer());
        let loaded = resumed.load_record(through.to_record());
        assert_eq!(loaded, Ok(()), "{name}");
        training.step(&mut through);
        training.step(&mut resumed);
        assert_equal_weights(&through.model(), &resumed.model());
    }
}

fn the_record_of_another_optimizer(device: &Device) {
    let training = Training::new(device);
    let all = || unlike().into_iter().chain(ours_unlike());
    for (writer, wrote) in all() {
        let mut written = training.fused(wrote());
        training.step(&mut written);
        for (reader, reads) in all() {
            if reader.trim_start_matches("our ") == writer.trim_start_matches("our ") {
                continue;
            }
            let mut fused = training.fused(reads());
            training.step(&mut fused);
            let mut twin = FusedOptimizer::new_ok(copy(&fused.model(), || mlp(device)), reads());
            twin.load_record_ok(fused.to_record());

            let error = fused.load_record(written.to_record());
            let Err(FusedError::RecordOfAnotherOptimizer { path, state }) = error else {
                panic!("{reader} loads {writer}: {error:?}");
            };
            assert!(["0.", "1."].contains(&&path[..2]), "`{path}`");
            assert!(!state.is_empty());
            // Its own state is as it was.
            training.step(&mut fused);
            training.step(&mut twin);
            assert_equal_weights(&twin.model(), &fused.model());
        }
    }
}

/// Burn records the weight of a linear layer of column layout the other way round, and its state not.
fn a_weight_of_column_layout_loads_its_own_record(device: &Device) {
    let column = || {
        let config = LinearConfig::new(3, 5).with_layout(LinearLayout::Col);
        config.init(device)
    };
    let fused = |model| FusedOptimizer::new_ok(model, AdamWConfig::new().init());
    let loss = |model: &Linear| model.forward(Tensor::<2>::ones([4, 3], device)).sum();
    let mut through = fused(column());
    through.step_ok(RATE, loss);
    let mut resumed = fused(copy(&through.model(), column));
    resumed.load_record_ok(through.to_record());
    through.step_ok(RATE, loss);
    resumed.step_ok(RATE, loss);
    assert_equal_weights(&through.model(), &resumed.model());
}

fn a_record_with_other_parameter_groups(device: &Device) {
    let training = Training::new(device);
    let group = |path| {
        let lion = LionConfig::new().build();
        let group = ParamGroup::from_predicate(path);
        AdamWConfig::new().init().with_group(group, lion, None)
    };
    let mut written = training.fused(group("weight"));
    training.step(&mut written);
    let error = training
        .fused(group("bias"))
        .load_record(written.to_record());
    assert_matches!(error, Err(FusedError::RecordOfAnotherOptimizer { .. }));
}

fn records_of_stock_accumulate_in_state_and_back(device: &Device) {
    let training = Training::new(device);
    let mut stock = training.fused(AdamWConfig::new().init());
    training.step(&mut stock);
    let mut in_state = FusedOptimizer::accumulating_in_state_ok(
        copy(&stock.model(), || mlp(device)),
        ours::AdamWConfig::new().build(),
    );
    in_state.load_record_ok(stock.to_record());
    training.step(&mut in_state);
    let mut back = FusedOptimizer::new_ok(
        copy(&in_state.model(), || mlp(device)),
        AdamWConfig::new().init(),
    );
    back.load_record_ok(in_state.to_record());
    training.step(&mut back);
    training.step(&mut stock);
    training.step(&mut stock);
    assert_near_weights(&stock.model(), &back.model(), 1e-4, 1e-3);
}

/// Muon on each half of the columns of a matrix.
#[derive(Clone)]
struct SegmentedMuon(Muon);

#[derive(Clone)]
struct Segments<const D: usize> {
    left: MuonState<D>,
    right: MuonState<D>,
}

impl<const D: usize> RecordState for Segments<D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        self.left.state_flatten(&format!("{prefix}.left"), sink);
        self.right.state_flatten(&format!("{prefix}.right"), sink);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let mut part =
            |name| MuonState::state_unflatten(&format!("{prefix}.{name}"), source, device);
        Some(Self {
            left: part("left")?,
            right: part("right")?,
        })
    }
}

impl Optimizer for SegmentedMuon {
    type State<const D: usize> = Segments<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Segments<D>>,
    ) -> (Tensor<D>, Option<Segments<D>>) {
        let half = tensor.dims()[1] / 2;
        let halves = |tensor: Tensor<D>| tensor.split(half, 1);
        let (values, gradients) = (halves(tensor), halves(gradient));
        let states = state.map_or([None, None], |it| [Some(it.left), Some(it.right)]);
        let all = values.into_iter().zip(gradients).zip(states);
        let step = |((value, gradient), state)| self.0.step(learning_rate, value, gradient, state);
        let (values, states): (Vec<_>, Vec<_>) = all.map(step).unzip();
        let mut states = states.into_iter().flatten();
        let mut next = || states.next().unwrap();
        let (left, right) = (next(), next());
        (Tensor::cat(values, 1), Some(Segments { left, right }))
    }

    fn to_device<const D: usize>(state: Segments<D>, device: &Device) -> Segments<D> {
        Segments {
            left: Muon::to_device(state.left, device),
            right: Muon::to_device(state.right, device),
        }
    }
}

fn segmented_state_resumes_from_its_record(device: &Device) {
    let init = || LinearConfig::new(6, 4).with_bias(false).init(device);
    let x = Tensor::<2>::random([5, 6], Distribution::Default, device);
    let optimizer = || ModuleOptimizer::from(SegmentedMuon(MuonConfig::new().build()));
    let loss = |model: &Linear| model.forward(x.clone()).powi_scalar(2).mean();
    let initial = init();
    let mut first = FusedOptimizer::new_ok(copy(&initial, init), optimizer());
    first.step_ok(RATE, loss);
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    checkpoint.save(&first, &Progress::new(1)).unwrap();
    let model = copy(&first.model(), init);
    let mut second = FusedOptimizer::new_ok(model, optimizer());
    assert_eq!(second.load_record(first.to_record()), Ok(()));
    let mut third = FusedOptimizer::new_ok(init(), optimizer());
    checkpoint.load::<()>(&mut third).unwrap();
    for fused in [&mut first, &mut second, &mut third] {
        fused.step_ok(RATE, loss);
    }
    assert_equal_weights(&first.model(), &second.model());
    assert_equal_weights(&first.model(), &third.model());
    // That of another model is refused still.
    let wide = LinearConfig::new(6, 6).with_bias(false).init(device);
    let wide = Linear {
        weight: Param::initialized(initial.weight.id, wide.weight.val()),
        ..wide
    };
    let mut wide = FusedOptimizer::new_ok(wide, optimizer());
    let error = wide.load_record(first.to_record()).unwrap_err();
    assert_matches!(error, FusedError::RecordShape { .. });
}

/// Two matrices of one id.
fn matrices(device: &Device) -> [Param<Tensor<2>>; 2] {
    let first = Param::from_tensor(Tensor::<2>::ones([4, 6], device));
    let second = Tensor::<2>::ones([4, 3], device).require_grad();
    let second = Param::initialized(first.id, second);
    [first, second]
}

fn the_record_of_a_parameter_of_another_shape(device: &Device) {
    for (name, optimizer) in unlike().into_iter().chain(ours_unlike()) {
        let [wide, narrow] = matrices(device);
        let loss = |matrix: &Param<Tensor<2>>| matrix.val().powi_scalar(2).mean();
        let mut written = FusedOptimizer::new_ok(wide, optimizer());
        written.step_ok(RATE, loss);
        let mut fused = FusedOptimizer::new_ok(narrow, optimizer());
        fused.step_ok(RATE, loss);
        let before = fused.to_record().into_bytes().unwrap();

        let error = fused.load_record(written.to_record()).unwrap_err();
        let FusedError::RecordShape {
            state,
            expected,
            found,
            ..
        } = &error
        else {
            panic!("{name}: {error}");
        };
        assert_eq!(expected, &[4, 3], "{name}, `{state}`");
        assert!(found.ends_with(&[6]), "{name}, `{state}`: {found:?}");
        assert_says(&error, "[4, 3]");
        assert_eq!(
            fused.to_record().into_bytes().unwrap()[..],
            before[..],
            "{name}"
        );
        fused.step_ok(RATE, loss);
    }
}

/// Burn loads any shape, and a step of ours must not read beside a buffer.
#[test]
fn a_state_of_another_shape_is_refused_before_the_step_of_a_stock_loop() {
    let device = &Device::flex().autodiff();
    for (name, optimizer) in ours_unlike() {
        let [wide, narrow] = matrices(device);
        let step = |matrix: Param<Tensor<2>>, optimizer: &mut ModuleOptimizer| {
            let gradients = matrix.val().powi_scalar(2).mean().backward();
            let gradients = GradientsParams::from_grads(gradients, &matrix);
            optimizer.step(RATE, matrix, gradients)
        };
        let mut written = optimizer();
        step(wide, &mut written);
        let mut loaded = optimizer().load_record(written.to_record());

        let before = narrow.val().into_data();
        let kept = narrow.clone();
        let panic = catch_unwind(AssertUnwindSafe(|| step(narrow, &mut loaded)));
        let panic = panic.err().unwrap_or_else(|| panic!("{name} goes through"));
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(
            message.contains("optimizer state is [4, 6]"),
            "{name}: {message}"
        );
        assert!(message.contains("parameter is [4, 3]"), "{name}: {message}");
        assert_eq!(kept.val().into_data(), before);
    }
}

#[test]
fn a_gradient_that_does_not_fit_is_refused_before_the_step() {
    let device = &Device::flex();
    let parameter = Tensor::<2>::ones([4, 3], device);
    let wide = Tensor::<2>::ones([4, 6], device);
    let half = Tensor::<2>::ones([4, 3], device).cast(FloatDType::F16);
    for (gradient, words) in [(wide, "gradient is [4, 6]"), (half, "in F16")] {
        let adam = ours::AdamConfig::new().build();
        let step = || adam.step(RATE, parameter.clone(), gradient.clone(), None);
        let panic = catch_unwind(AssertUnwindSafe(step)).err().unwrap();
        let message = panic.downcast_ref::<String>().unwrap();
        assert_says(&message, words);
    }
}

/// Burn loads every state in the default float type of its default device.
fn half_and_double_parameters_resume_from_a_record(device: &Device) {
    for dtype in [FloatDType::F16, FloatDType::BF16, FloatDType::F64] {
        if !device.clone().inner().supports_dtype(dtype) {
            continue;
        }
        for (name, optimizer) in ours_unlike() {
            let values = Tensor::<2>::random([4, 3], Distribution::Default, device);
            let values = values.cast(dtype).detach().require_grad();
            let matrix = || Param::from_tensor(values.clone());
            let loss = |matrix: &Param<Tensor<2>>| matrix.val().powi_scalar(2).mean();
            let mut through = FusedOptimizer::new_ok(matrix(), optimizer());
            through.step_ok(RATE, loss);
            let mut resumed = FusedOptimizer::new_ok(through.model(), optimizer());
            resumed.load_record_ok(through.to_record());
            through.step_ok(RATE, loss);
            resumed.step_ok(RATE, loss);
            let [through, resumed] =
                [through, resumed].map(|fused| fused.model().val().into_data());
            assert_eq!(through.dtype(), dtype.into());
            match dtype {
                // Through f32.
                FloatDType::F64 => through
                    .assert_approx_eq::<f64>(&resumed, burn::tensor::Tolerance::absolute(1e-7)),
                _ => assert_eq!(
                    through.as_bytes(),
                    resumed.as_bytes(),
                    "{name} in {dtype:?}"
                ),
            }
        }
    }
}

on_every_backend!(
    every_optimizer_loads_its_own_record,
    the_record_of_another_optimizer,
    a_weight_of_column_layout_loads_its_own_record,
    a_record_with_other_parameter_groups,
    records_of_stock_accumulate_in_state_and_back,
    the_record_of_a_parameter_of_another_shape,
    segmented_state_resumes_from_its_record,
);

#[test]
fn half_and_double_parameters_resume_from_a_record_with_our_optimizers() {
    half_and_double_parameters_resume_from_a_record(&Device::flex().autodiff());
}
