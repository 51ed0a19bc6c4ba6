//! Checkpoints of only the trained parameters.

use burn::store::ModuleRecord;

use super::*;

/// Layers with adapters, and a layer with running statistics.
#[derive(Module, Debug)]
struct Network {
    layers: Vec<Linear>,
    norm: BatchNorm,
}

impl Network {
    fn init(layers: usize) -> Self {
        let device = &Device::flex().autodiff();
        let layer = |_| LinearConfig::new(32, 32).init(device);
        Self {
            layers: (0..layers).map(layer).collect(),
            norm: BatchNormConfig::new(32).init(device),
        }
    }

    fn adapted(self) -> Self {
        let norm = self.norm.clone();
        let layers = self.layers.apply_lora(Lora::new(2, 4.0));
        Self { layers, norm }
    }
}

type Fused = FusedOptimizer<Network>;

fn fused(model: Network) -> Fused {
    FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap()
}

fn step(fused: &mut Fused, value: f32) {
    let x = Tensor::<2>::ones([3, 32], &Device::flex().autodiff()) * value;
    fused
        .step(0.1, |model| {
            let x = model
                .layers
                .iter()
                .fold(x, |x, layer| layer.forward(x).tanh());
            model.norm.forward(x).powi_scalar(3).sum()
        })
        .unwrap();
}

/// A base model, and adapters of it that were trained for two steps and saved.
fn trained(folder: &Path) -> (Network, Fused, Checkpoint) {
    let base = Network::init(2);
    let mut training = fused(copy(&base, || Network::init(2)).adapted());
    (1..=2).for_each(|value| step(&mut training, value as f32));
    let checkpoint = Checkpoint::at(folder).trained_only();
    checkpoint.save(&training, &Progress::new(2)).unwrap();
    (base, training, checkpoint)
}

#[test]
fn adapters_resume_on_base_from_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let (base, through, checkpoint) = trained(folder.path());
    let size = files(folder.path())[Path::new("step-2/model.bpk")].len();
    let whole = Checkpoint::at(folder.path().join("whole"));
    whole.save(&through, &Progress::new(2)).unwrap();
    let whole = files(folder.path())[Path::new("whole/step-2/model.bpk")].len();
    assert!(size * 2 < whole, "{size} of {whole} bytes");

    // The contents of the checkpoint decide how it is loaded, not the option of the next save.
    for checkpoint in [checkpoint, Checkpoint::at(folder.path())] {
        let mut resumed = fused(copy(&base, || Network::init(2)).adapted());
        step(&mut resumed, 7.0);
        checkpoint.load::<()>(&mut resumed).unwrap();
        assert_equal_weights(&through.model(), &resumed.model());
        let model = copy(&through.model(), || Network::init(2).adapted());
        let record = through.to_record();
        let mut through = fused(model);
        through.load_record(record).unwrap();
        for value in [3.0, 4.0] {
            step(&mut through, value);
            step(&mut resumed, value);
            assert_equal_weights(&through.model(), &resumed.model());
        }
    }
}

#[test]
fn frozen_parameters_keep_values_of_model() {
    let folder = tempfile::tempdir().unwrap();
    let (_, through, checkpoint) = trained(folder.path());
    let another = Network::init(2);
    // Without the adapter.
    let weight = |model: &Network| model.layers[0].weight.base().clone().into_data();
    let before = weight(&another);
    let mut resumed = fused(another.adapted());
    checkpoint.load::<()>(&mut resumed).unwrap();
    assert_eq!(before, weight(&resumed.model()));
    let mean = |fused: &Fused| fused.model().norm.running_mean.value().into_data();
    assert_eq!(mean(&through), mean(&resumed));
}

#[derive(Module, Debug)]
struct Counted {
    weight: Param<Tensor<1>>,
    count: Param<Tensor<1, Int>>,
}

#[test]
fn counters_are_saved_with_trained_parameters() {
    let device = Device::flex().autodiff();
    let init = |count: i32| Counted {
        weight: Param::from_tensor(Tensor::ones([2], &device)),
        count: Param::initialized(ParamId::new(), Tensor::from_data([count], &device)),
    };
    let fused = |model| FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path()).trained_only();
    checkpoint.save(&fused(init(7)), &Progress::new(1)).unwrap();
    let mut resumed = fused(init(0));
    checkpoint.load::<()>(&mut resumed).unwrap();
    let count = resumed.model().count.val().into_scalar::<i32>();
    assert_eq!(count, 7);
}

#[test]
fn load_that_panics_in_backend_is_an_error() {
    let [_, device] = cpus();
    let weight = |rows| Param::from_tensor(Tensor::<2>::zeros([rows, 3], &device));
    let fused = || FusedOptimizer::new(vec![weight(1), weight(0)], AdamWConfig::new().init());
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let mut training = fused().unwrap();
    checkpoint.save(&training, &Progress::new(1)).unwrap();
    let error = checkpoint.load::<()>(&mut training).unwrap_err();
    assert!(error.to_string().contains("model.bpk"), "{error}");
}

/// Tries the advice of the error about an optimizer that does not fit.
#[test]
fn record_of_trained_parameters_loads_into_model() {
    let folder = tempfile::tempdir().unwrap();
    let (base, through, checkpoint) = trained(folder.path());
    let record = checkpoint.model().unwrap();
    let loaded = base.adapted().load_record(record);
    assert_equal_weights(&through.model(), &loaded);
}

#[test]
fn another_trained_set_is_an_error_with_names() {
    let folder = tempfile::tempdir().unwrap();
    let (base, _, checkpoint) = trained(folder.path());
    let refused = |mut training: Fused| {
        let before = weights(&training.model());
        let refused = checkpoint.load::<()>(&mut training).unwrap_err();
        assert!(before == weights(&training.model()));
        assert!(matches!(refused, CheckpointError::Model { .. }));
        refused.to_string()
    };
    // No adapters: the weights of the layers are trained.
    let message = refused(fused(base));
    assert_says(&message, "the model has no `layers.0.");
    assert_says(&message, "the file has no `layers.0.");
    // More adapters than were saved.
    let message = refused(fused(Network::init(9).adapted()));
    assert_says(&message, "and 9 more");
    // A saved parameter is now frozen, so the load does not expect it.
    let frozen = Network::init(2).adapted();
    let frozen = frozen.freeze_group(ParamGroup::from_predicate("norm"));
    let message = refused(fused(frozen));
    assert_says(&message, "no `norm.beta`, `norm.gamma`");
}

#[test]
fn checkpoint_of_another_model_names_five_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let saved = fused(Network::init(9));
    checkpoint.save(&saved, &Progress::new(1)).unwrap();
    let mut other = fused(Network::init(1));
    let refused = checkpoint.load::<()>(&mut other).unwrap_err().to_string();
    assert_says(&refused, "`layers.3.bias` and 11 more");
}

#[test]
fn checkpoint_files_load_into_stock_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut through = fused(Network::init(2));
    step(&mut through, 1.0);
    let checkpoint = Checkpoint::at(folder.path());
    checkpoint.save(&through, &Progress::new(1)).unwrap();
    let file = |name: &str| folder.path().join("step-1").join(name);
    let model = Network::init(2).load_record(ModuleRecord::load(file("model.bpk")).unwrap());
    let record = OptimizerRecord::load(file("optimizer.bpk")).unwrap();
    let optimizer = AdamWConfig::new().init().load_record(record);
    assert_equal_weights(&through.model(), &model);
    let [stock_model, stock_optimizer] = ["stock-model.bpk", "stock-optim.bpk"].map(file);
    model.into_record().save(&stock_model).unwrap();
    optimizer.to_record().save(&stock_optimizer).unwrap();

    let model = Network::init(2).load_record(ModuleRecord::load(stock_model).unwrap());
    let mut back = fused(model);
    back.load_record(OptimizerRecord::load(stock_optimizer).unwrap())
        .unwrap();
    for training in [&mut through, &mut back] {
        step(training, 2.0);
    }
    assert_equal_weights(&through.model(), &back.model());
}
