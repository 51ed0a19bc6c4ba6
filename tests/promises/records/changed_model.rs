//! States of a model that has changed: what a training saves, it loads, and a state that can't go on is refused by name.

use super::*;

type Layers = Vec<Linear>;
type Fused = FusedOptimizer<Layers>;

fn device() -> Device {
    Device::flex().autodiff()
}

fn layers(count: usize) -> Layers {
    let layer = |_| LinearConfig::new(4, 4).init(&device());
    (0..count).map(layer).collect()
}

fn loss(layers: &Layers) -> Tensor<1> {
    let x = Tensor::<2>::ones([2, 4], &device());
    layers
        .iter()
        .fold(x, |x, layer| layer.forward(x).tanh())
        .sum()
}

fn step(fused: &mut Fused) {
    fused.step(0.1, loss).unwrap();
}

fn adamw() -> ModuleOptimizer {
    ours::AdamWConfig::new().init()
}

/// The model is changed as in a stock loop, and the optimizer still has the states of a removed layer.
#[test]
fn checkpoint_after_layer_was_removed_by_program_loads() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let mut fused = Fused::new(layers(2), adamw()).unwrap();
    step(&mut fused);
    let (mut model, optimizer) = fused.into_parts();
    model.pop();
    let mut through = Fused::new(model, optimizer).unwrap();
    step(&mut through);
    checkpoint.save(&through, &Progress::new(2)).unwrap();
    let mut resumed = Fused::new(layers(1), adamw()).unwrap();
    checkpoint.load::<()>(&mut resumed).unwrap();
    for fused in [&mut through, &mut resumed] {
        step(fused);
    }
    assert_equal_weights(&through.model(), &resumed.model());
}

/// The frozen parameters come from elsewhere, with other ids.
#[test]
fn checkpoint_of_trained_parameters_loads_after_freezing() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path()).trained_only();
    let mut through = Fused::new(layers(2), adamw()).unwrap();
    step(&mut through);
    let freeze = |model: Layers| model.freeze_group(ParamGroup::from_predicate("0."));
    through.change_model(freeze).unwrap();
    let mut base = layers(2);
    for (to, from) in base.iter_mut().zip(through.model()) {
        to.weight = Param::from_tensor(from.weight.val().detach());
        to.bias = from
            .bias
            .map(|bias| Param::from_tensor(bias.val().detach()));
    }
    checkpoint.save(&through, &Progress::new(1)).unwrap();
    let mut resumed = Fused::new(freeze(base), adamw()).unwrap();
    checkpoint.load::<()>(&mut resumed).unwrap();
    for fused in [&mut through, &mut resumed] {
        step(fused);
    }
    assert_equal_weights(&through.model(), &resumed.model());
}

#[derive(Module, Debug)]
struct Deep {
    deep: Param<Tensor<9>>,
    head: Linear,
}

#[test]
fn averaging_ends_with_frozen_parameter_of_nine_dimensions() {
    let deep = Tensor::<9>::ones([1; 9], &device());
    let model = Deep {
        deep: Param::from_tensor(deep).no_grad(),
        head: LinearConfig::new(4, 4).init(&device()),
    };
    let averaging = WeightAveragingConfig::new().with_decay(Some(0.9));
    let fused = FusedOptimizer::new(model, adamw()).unwrap();
    let mut fused = fused
        .with_config(FusedConfig::averaging(averaging))
        .unwrap();
    let x = Tensor::<2>::ones([2, 4], &device());
    let loss = |model: &Deep| model.head.forward(x.clone()).sum();
    fused.step(0.1, loss).unwrap();
    let (_, optimizer) = fused.with_config(FusedConfig::new()).unwrap().into_parts();
    assert!(!optimizer.to_record().is_empty());
}

/// Burn keeps the optimizer of a parameter's first step, also where its path then belongs to another group.
#[test]
fn offloaded_state_that_moves_to_another_group_is_an_error() {
    let states = OffloadConfig::new(Offload::States).with_host(OffloadHost::NdArray);
    let states = FusedConfig::offload(states.with_min_elements(1));
    let remove = |mut model: Layers| {
        model.remove(0);
        model
    };
    let start = |group: ParamGroup, model: Layers, is_offloaded| {
        let optimizer = adamw().with_group(group, ours::LionConfig::new().build(), None);
        let fused = Fused::new(model, optimizer).unwrap();
        match is_offloaded {
            true => fused.with_config(states.clone()).unwrap(),
            false => fused,
        }
    };
    let trained = |group, model, is_offloaded| {
        let mut fused = start(group, model, is_offloaded);
        step(&mut fused);
        fused
    };
    let by_path = || ParamGroup::from_predicate("0.");
    let initial = layers(2);
    let ids = [initial[0].weight.id, initial[0].bias.as_ref().unwrap().id];
    let mut moved = trained(by_path(), initial.clone(), true);
    let refused = moved.change_model(remove).unwrap_err();
    let mut new = start(by_path(), initial.clone(), true);
    new.change_model(remove).unwrap();
    assert_says(&refused, "`1.");
    assert_says(&refused, "`ParamGroup::from_ids`");

    let by_ids = ParamGroup::from_ids(ids.into_iter().collect());
    let mut offloaded = trained(by_ids, initial.clone(), true);
    let mut whole = trained(by_path(), initial, false);
    for fused in [&mut offloaded, &mut whole] {
        fused.change_model(remove).unwrap();
        (0..3).for_each(|_| step(fused));
    }
    assert_equal_weights(&offloaded.model(), &whole.model());
}
