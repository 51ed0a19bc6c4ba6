//! An optimizer record is loaded completely, or refused with the name of the parameter. Nothing is lost.

mod changed_model;
pub mod exchange;
mod pruned;
mod returned;

use backburn::optim as ours;
use burn::optim::*;

use crate::common::mlp::Mlp;
use crate::common::*;
use exchange::optimizers::{self, Named};

const RATE: f64 = 0.01;

/// Optimizers with different states. Those of `backburn::optim` have the states of Burn's.
fn unlike() -> Vec<Named> {
    let names = [
        "Sgd with momentum",
        "Adam",
        "AdaGrad",
        "RmsProp",
        "Adafactor",
        "Adan",
        "Lamb",
        "Lion",
        "our Sgd with momentum",
        "our Adam",
        "our Lion",
    ];
    let mut all = optimizers::all();
    all.retain(|optimizer| names.contains(&optimizer.name));
    assert_eq!(all.len(), names.len());
    all
}

struct Training {
    initial: Mlp,
    x: Tensor<2>,
    device: Device,
}

impl Training {
    fn new(device: &Device) -> Self {
        Self {
            initial: Mlp::init(device),
            x: Tensor::random([4, 3], Distribution::Default, device),
            device: device.clone(),
        }
    }

    fn fused(&self, optimizer: ModuleOptimizer) -> FusedOptimizer<Mlp> {
        FusedOptimizer::new(copy(&self.initial, || Mlp::init(&self.device)), optimizer).unwrap()
    }

    fn step(&self, fused: &mut FusedOptimizer<Mlp>) {
        fused
            .step(RATE, |model| model.loss(self.x.clone()))
            .unwrap();
    }
}

fn record_of_another_optimizer_is_an_error(device: &Device) {
    let training = Training::new(device);
    for writer in unlike() {
        let mut written = training.fused((writer.make)());
        training.step(&mut written);
        for reader in unlike() {
            if reader.name.trim_start_matches("our ") == writer.name.trim_start_matches("our ") {
                continue;
            }
            let mut fused = training.fused((reader.make)());
            training.step(&mut fused);
            let mut twin = resumed(&fused, (reader.make)(), || Mlp::init(device));

            let error = fused.load_record(written.to_record());
            let Err(FusedError::RecordOfAnotherOptimizer { path, state }) = error else {
                panic!("{} loads {}: {error:?}", reader.name, writer.name);
            };
            assert!(path.contains("put."), "`{path}`");
            assert!(!state.is_empty());
            // Its own state is unchanged.
            training.step(&mut fused);
            training.step(&mut twin);
            assert_equal_weights(&twin.model(), &fused.model());
        }
    }
}

fn record_with_other_parameter_groups_is_an_error(device: &Device) {
    let training = Training::new(device);
    let group = |path| {
        let lion = LionConfig::new().build();
        let group = ParamGroup::from_predicate(path);
        AdamWConfig::new().init().with_group(group, lion, None)
    };
    let mut written = training.fused(group("weight"));
    training.step(&mut written);
    let mut other = training.fused(group("bias"));
    let error = other.load_record(written.to_record());
    assert_matches!(error, Err(FusedError::RecordOfAnotherOptimizer { .. }));
}

fn record_of_stock_accumulates_in_state_and_back(device: &Device) {
    let training = Training::new(device);
    let mut stock = training.fused(AdamWConfig::new().init());
    training.step(&mut stock);
    let init = || Mlp::init(device);
    let (model, adamw) = (copy(&stock.model(), init), ours::AdamWConfig::new());
    let mut in_state = FusedOptimizer::accumulating_in_state(model, adamw.build()).unwrap();
    in_state.load_record(stock.to_record()).unwrap();
    training.step(&mut in_state);
    let mut back = resumed(&in_state, AdamWConfig::new().init(), init);
    training.step(&mut back);
    training.step(&mut stock);
    training.step(&mut stock);
    assert_equal_weights(&stock.model(), &back.model());
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

fn record_of_segmented_state_resumes(device: &Device) {
    let init = || LinearConfig::new(6, 4).with_bias(false).init(device);
    let x = Tensor::<2>::random([5, 6], Distribution::Default, device);
    let optimizer = || ModuleOptimizer::from(SegmentedMuon(MuonConfig::new().build()));
    let loss = |model: &Linear| model.forward(x.clone()).powi_scalar(2).mean();
    let initial = init();
    let mut first = FusedOptimizer::new(copy(&initial, init), optimizer()).unwrap();
    first.step(RATE, loss).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    checkpoint.save(&first, &Progress::new(1)).unwrap();
    let mut second = resumed(&first, optimizer(), init);
    let mut third = FusedOptimizer::new(init(), optimizer()).unwrap();
    checkpoint.load::<()>(&mut third).unwrap();
    for fused in [&mut first, &mut second, &mut third] {
        fused.step(RATE, loss).unwrap();
    }
    assert_equal_weights(&first.model(), &second.model());
    assert_equal_weights(&first.model(), &third.model());
    // The record of another model is still refused.
    let wide = LinearConfig::new(6, 6).with_bias(false).init(device);
    let wide = Linear {
        weight: Param::initialized(initial.weight.id, wide.weight.val()),
        ..wide
    };
    let mut wide = FusedOptimizer::new(wide, optimizer()).unwrap();
    let error = wide.load_record(first.to_record()).unwrap_err();
    assert_matches!(error, FusedError::RecordShape { .. });
}

/// Two matrices with the same id.
fn matrices(device: &Device) -> [Param<Tensor<2>>; 2] {
    let first = Param::from_tensor(Tensor::<2>::ones([4, 6], device));
    let second = Tensor::<2>::ones([4, 3], device).require_grad();
    let second = Param::initialized(first.id, second);
    [first, second]
}

fn record_of_another_shape_is_an_error(device: &Device) {
    for Named { name, make, .. } in unlike() {
        let [wide, narrow] = matrices(device);
        let loss = |matrix: &Param<Tensor<2>>| matrix.val().powi_scalar(2).mean();
        let mut written = FusedOptimizer::new(wide, make()).unwrap();
        written.step(RATE, loss).unwrap();
        let mut fused = FusedOptimizer::new(narrow, make()).unwrap();
        fused.step(RATE, loss).unwrap();
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
        let after = fused.to_record().into_bytes().unwrap();
        assert_eq!(after[..], before[..], "{name}");
        fused.step(RATE, loss).unwrap();
    }
}

/// Burn loads any shape, and our step must not read outside of a buffer.
#[test]
fn state_of_another_shape_is_refused_before_stock_step() {
    let device = &Device::flex().autodiff();
    let ours = unlike().into_iter();
    for Named { name, make, .. } in ours.filter(|optimizer| optimizer.name.starts_with("our")) {
        let [wide, narrow] = matrices(device);
        let step = |matrix: Param<Tensor<2>>, optimizer: &mut ModuleOptimizer| {
            let loss = |matrix: &Param<Tensor<2>>, _| matrix.val().powi_scalar(2).mean();
            train_stock(matrix, optimizer, 1, RATE, loss)
        };
        let mut written = make();
        step(wide, &mut written);
        let mut loaded = make().load_record(written.to_record());

        let before = narrow.val().into_data();
        let kept = narrow.clone();
        let message = panic_of(|| step(narrow, &mut loaded));
        assert_says(&message, "optimizer state is [4, 6]");
        assert_says(&message, "parameter is [4, 3]");
        assert_eq!(kept.val().into_data(), before, "{name}");
    }
}

#[test]
fn gradient_that_does_not_fit_is_refused_before_step() {
    let device = &Device::flex();
    let parameter = Tensor::<2>::ones([4, 3], device);
    let wide = Tensor::<2>::ones([4, 6], device);
    let half = Tensor::<2>::ones([4, 3], device).cast(FloatDType::F16);
    for (gradient, words) in [(wide, "gradient is [4, 6]"), (half, "in F16")] {
        let adam = ours::AdamConfig::new().build();
        let message = panic_of(|| adam.step(RATE, parameter.clone(), gradient, None));
        assert_says(&message, words);
    }
}

on_every_backend!(
    record_of_another_optimizer_is_an_error,
    record_with_other_parameter_groups_is_an_error,
    record_of_stock_accumulates_in_state_and_back,
    record_of_another_shape_is_an_error,
    record_of_segmented_state_resumes,
);
