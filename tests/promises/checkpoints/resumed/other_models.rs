//! Checkpoints of a model that has changed since, and of another optimizer.

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{LearningRate, MuonConfig, Optimizer};

use super::*;

/// The checkpoint contains a layer that was removed from the model.
#[test]
fn changed_model_returns_to_its_checkpoint() {
    let device = &Device::flex().autodiff();
    let layer = || LinearConfig::new(4, 4).init(device);
    let start = || {
        let fused = FusedOptimizer::new(vec![layer(), layer()], AdamWConfig::new().init()).unwrap();
        fused.with_config(FusedConfig::lagged(0.5)).unwrap()
    };
    let step = |fused: &mut FusedOptimizer<Vec<Linear>>| {
        fused
            .step(0.1, |layers| {
                let x = Tensor::<2>::ones([3, 4], device);
                let x = layers.iter().fold(x, |x, layer| layer.forward(x));
                x.powi_scalar(2).sum()
            })
            .unwrap();
    };
    let mut fused = start();
    step(&mut fused);
    let (checkpoint, _folder) = saved(&fused);
    let mut through = start();
    checkpoint.load::<()>(&mut through).unwrap();

    let whole = fused.model();
    let first = |mut layers: Vec<Linear>| {
        layers.truncate(1);
        layers
    };
    fused.change_model(first).unwrap();
    step(&mut fused);
    fused
        .change_model(|layers| [first(layers), whole[1..].to_vec()].concat())
        .unwrap();
    fused
        .change_model(|layers| [first(layers), vec![layer()]].concat())
        .unwrap();
    checkpoint.load::<()>(&mut fused).unwrap();
    for _ in 0..3 {
        step(&mut through);
        step(&mut fused);
        assert_eq!(through.last_step().clipping, fused.last_step().clipping);
    }
    assert_equal_weights(&through.model(), &fused.model());
}

/// The states of Muon and of SGD with momentum have the same names.
#[test]
fn checkpoint_of_muon_is_refused_by_sgd_and_reverse() {
    type Optimizers = [fn() -> burn::optim::ModuleOptimizer; 2];
    let muons: Optimizers = [
        || optim::MuonConfig::new().init(),
        || burn::optim::MuonConfig::new().init(),
    ];
    let sgds: Optimizers = [
        || {
            optim::SgdConfig::new()
                .with_momentum(Some(MomentumConfig::new()))
                .init()
        },
        sgd,
    ];
    let adams: Optimizers = [
        || optim::AdamConfig::new().init(),
        || AdamWConfig::new().init(),
    ];
    let fused = |optimizer: fn() -> _| FusedOptimizer::new(Small::init(), optimizer()).unwrap();
    for (same, others) in [(muons, &sgds[..]), (sgds, &muons), (adams, &[])] {
        for saves in same {
            let mut training = fused(saves);
            step(&mut training);
            let (checkpoint, _folder) = saved(&training);
            for loads in same {
                checkpoint.load::<()>(&mut fused(loads)).unwrap();
            }
            for other in others {
                let mut training = fused(*other);
                let before = contents(&training);
                let refused = checkpoint.load::<()>(&mut training).unwrap_err();
                assert!(contents(&training) == before);
                let CheckpointError::Optimizer { error, .. } = &refused else {
                    panic!("{refused}");
                };
                assert_matches!(error, FusedError::RecordOfAnotherOptimizer { path, .. } if path == "weight");
                assert_says(&refused, "load the record of `Checkpoint::model`");
                let model = Small::init().load_record(checkpoint.model().unwrap());
                step(&mut FusedOptimizer::new(model, other()).unwrap());
            }
        }
    }
}

/// A loaded model has the ids of its checkpoint, which a group of the new program does not know.
#[test]
fn group_of_ids_is_refused_and_group_of_paths_loads() {
    let device = Device::flex().autodiff();
    let init = || -> Vec<Linear> { vec![LinearConfig::new(4, 4).init(&device); 1] };
    let adamw = |decay| optim::AdamWConfig::new().with_weight_decay(decay);
    let x = Tensor::<2>::ones([2, 4], &device);
    let step = |fused: &mut FusedOptimizer<Vec<Linear>>| {
        let loss = |model: &Vec<Linear>| model[0].forward(x.clone()).powi_scalar(2).mean();
        fused.step(1e-2, loss).unwrap();
    };
    let start = |model: Vec<Linear>, of_optimizer: ParamGroup, of_hook: ParamGroup| {
        let optimizer = adamw(0.5).init();
        let optimizer = optimizer.with_group(of_optimizer, adamw(0.0).build(), None);
        let fused = FusedOptimizer::new(model, optimizer).unwrap();
        fused.with_hook(of_hook, GradientStatistics::new())
    };
    let path = || ParamGroup::from_predicate("weight");
    let mut through = start(init(), path(), path());
    step(&mut through);
    let (checkpoint, _folder) = saved(&through);
    step(&mut through);

    let ids = |model: &Vec<Linear>| ParamGroup::from_ids(vec![model[0].weight.id]);
    for (of_optimizer, what) in [(true, "the optimizer"), (false, "a hook")] {
        let model = init();
        let ids = ids(&model);
        let mut other = match of_optimizer {
            true => start(model, ids, path()),
            false => start(model, path(), ids),
        };
        let error = checkpoint.load::<()>(&mut other).unwrap_err();
        assert_says(&error, what);
        assert_says(&error, "`0.weight`");
    }

    // The advice: paths, or a model that has the ids of the checkpoint.
    let mut loaded = start(init(), path(), path());
    checkpoint.load::<()>(&mut loaded).unwrap();
    let model = init().load_record(checkpoint.model().unwrap());
    let ids = ids(&model);
    let mut of_ids = start(model, ids.clone(), ids);
    checkpoint.load::<()>(&mut of_ids).unwrap();
    for mut resumed in [loaded, of_ids] {
        step(&mut resumed);
        assert_equal_weights(&through.model(), &resumed.model());
    }
}

/// SGD with noise in its updates.
#[derive(Clone)]
struct Noisy;

impl Optimizer for Noisy {
    type State<const D: usize> = ();

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        _state: Option<()>,
    ) -> (Tensor<D>, Option<()>) {
        let noise = tensor.random_like(Distribution::Normal(0.0, 1.0));
        (tensor - (gradient + noise) * rate, None)
    }

    fn to_device<const D: usize>(_state: (), _device: &Device) {}
}

#[test]
fn optimizer_that_draws_loads() {
    let device = Device::flex().autodiff();
    let training = || {
        let model: Linear = LinearConfig::new(4, 4).init(&device);
        FusedOptimizer::new(model, Noisy.into()).unwrap()
    };
    let first = training();
    let (checkpoint, _folder) = saved(&first);
    let mut other = training();
    checkpoint.load::<()>(&mut other).unwrap();
    assert_equal_weights(&first.model(), &other.model());
}

/// Groups whose optimizers differ only in a later update, or by the clipping of a large gradient.
#[test]
fn group_of_ids_is_refused_for_any_setting() {
    let device = Device::flex().autodiff();
    let init = || -> Linear { LinearConfig::new(4, 4).init(&device) };
    type Grouped = fn(ParamGroup) -> ModuleOptimizer;
    let optimizers: [Grouped; 5] = [
        |group| {
            let other = AdamConfig::new().with_amsgrad(true).build();
            AdamConfig::new().init().with_group(group, other, None)
        },
        |group| {
            let other = LionConfig::new().with_beta_1(0.5).build();
            LionConfig::new().init().with_group(group, other, None)
        },
        |group| {
            let other = AdamConfig::new().build();
            let clipping = GradientClippingConfig::Norm(5.0).init();
            AdamConfig::new()
                .init()
                .with_group(group, other, Some(clipping))
        },
        |group| {
            let other = AdamWConfig::new().with_cautious_weight_decay(true).build();
            AdamWConfig::new().init().with_group(group, other, None)
        },
        |group| {
            let other = MuonConfig::new()
                .with_momentum(MomentumConfig::new())
                .build();
            let muon = MuonConfig::new().build();
            let adamw = AdamWConfig::new().init();
            let all = adamw.with_group(ParamGroup::from_path("weight"), muon, None);
            all.with_group(group, other, None)
        },
    ];
    for (index, grouped) in optimizers.into_iter().enumerate() {
        let by_path = grouped(ParamGroup::from_path("weight"));
        let (checkpoint, _folder) = saved(&FusedOptimizer::new(init(), by_path).unwrap());
        let model = init();
        let by_id = grouped(ParamGroup::from_ids(vec![model.weight.id]));
        let mut other = FusedOptimizer::new(model, by_id).unwrap();
        let error = checkpoint.load::<()>(&mut other);
        let error = error.err().unwrap_or_else(|| panic!("{index} loads"));
        assert_says(&error, "`weight`");
    }
}

/// Burn loads states in f32, also those of parameters in bf16.
#[test]
fn states_that_optimizer_cannot_step_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let device = &Device::flex().autodiff();
    let start = |optimizer: ModuleOptimizer| {
        let model = cast(LinearConfig::new(4, 4).init(device), FloatDType::BF16).unwrap();
        FusedOptimizer::<Linear>::new(model, optimizer).unwrap()
    };
    let step = |fused: &mut FusedOptimizer<Linear>| {
        let x = Tensor::<2>::ones([2, 4], device).cast(FloatDType::BF16);
        fused.step(0.1, |model| model.forward(x).sum()).unwrap();
    };
    let mut burns = start(AdamWConfig::new().init());
    step(&mut burns);
    checkpoint.save(&burns, &Progress::new(1)).unwrap();
    let mut resumed = start(AdamWConfig::new().init());
    let before = weights(&resumed.model());
    let refused = checkpoint.load::<()>(&mut resumed).unwrap_err();
    assert!(matches!(refused, CheckpointError::Optimizer { .. }));
    assert_says(&refused, "`backburn::optim`");
    assert!(before == weights(&resumed.model()));
    let mut ours = start(backburn::optim::AdamWConfig::new().init());
    checkpoint.load::<()>(&mut ours).unwrap();
    step(&mut ours);
}
