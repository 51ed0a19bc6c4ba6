//! Records are the ordinary ones, in both directions, at any step.

use burn::store::ModuleRecord;

use super::*;

/// A model and an optimizer that load what is saved after `steps`, with what waits elsewhere or not, and go on to
/// the end.
fn resumed(
    device: &Device,
    saved: (ModuleRecord, OptimizerRecord),
    optimizer: &ModuleOptimizer,
    mode: Option<Offload>,
    batches: &[Tensor<2, Int>],
) -> FusedOptimizer<Network> {
    let (model, record) = saved;
    let model = Network::init(device).load_record(model);
    let mut fused = FusedOptimizer::new_ok(model, optimizer.clone());
    if let Some(mode) = mode {
        fused = fused.with_config_on_ok(FusedConfig::offload(config(device, mode)), device);
    }
    fused.load_record_ok(record);
    train_fused(&mut fused, batches.len(), RATE, |model, step| {
        model.loss(batches[step].clone())
    });
    fused
}

fn a_run_resumes_with_offload_and_without(device: &Device) {
    let batches = batches(device);
    let (first, then) = batches.split_at(3);
    for optimizer in optimizers(device) {
        let initial = Network::init(device);
        let copy = || copy(&initial, || Network::init(device));
        let mut plain = FusedOptimizer::new_ok(copy(), optimizer.clone());
        let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
        train_fused(&mut plain, batches.len(), RATE, loss);
        for (before, after) in changes(device) {
            let mut fused = FusedOptimizer::new_ok(copy(), optimizer.clone());
            if let Some(mode) = before {
                fused = fused.with_config_on_ok(FusedConfig::offload(config(device, mode)), device);
            }
            train_fused(&mut fused, first.len(), RATE, loss);
            let saved = (fused.model().into_record(), fused.to_record());
            let again = resumed(device, saved, &optimizer, after, then);
            assert_equal_weights(&plain.model(), &again.model());
            // Nothing of the states is lost on the way.
            let len = plain.to_record().len();
            assert_eq!(again.to_record().len(), len, "{before:?} to {after:?}");
            let (_, taken_apart) = again.into_parts();
            assert_eq!(taken_apart.to_record().len(), len);
        }
    }
}

/// From no offload to each mode, from each mode to none, and from one to another.
fn changes(device: &Device) -> Vec<(Option<Offload>, Option<Offload>)> {
    let between = [
        (Some(MODES[0]), Some(MODES[2])),
        (Some(MODES[2]), Some(MODES[0])),
    ];
    if !is_exact(device) {
        return between.to_vec();
    }
    let to = MODES.map(|mode| (None, Some(mode)));
    let from = MODES.map(|mode| (Some(mode), None));
    [to.as_slice(), &from, &between].concat()
}

fn a_training_can_be_made_again_with_another_mode(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let batches = batches(device);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    let mut plain = FusedOptimizer::new_ok(copy(), AdamConfig::new().init());
    let mut fused = FusedOptimizer::new_ok(copy(), AdamConfig::new().init());
    for (step, mode) in MODES.into_iter().chain([MODES[0]]).enumerate() {
        fused = fused.with_config_on_ok(FusedConfig::offload(config(device, mode)), device);
        fused.step_ok(RATE, |model| loss(model, step));
    }
    train_fused(&mut plain, 6, RATE, loss);
    assert_equal_weights(&plain.model(), &fused.model());
}

/// The scale of the loss, and the norm of lagged clipping, are in the records of the optimizer as without.
fn the_state_of_policies_is_in_the_records(device: &Device) {
    let batches = batches(device);
    for mode in modes(device) {
        let fuse = || {
            FusedOptimizer::new_ok(Network::init(device), AdamConfig::new().init())
                .with_config_on_ok(
                    FusedConfig::lagged(0.5)
                        .with_loss_scaling(Some(
                            LossScalingConfig::new().with_growth_interval(Some(2)),
                        ))
                        .with_offload(Some(config(device, mode))),
                    device,
                )
        };
        let mut fused = fuse();
        let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
        let mut scales = Vec::new();
        for step in 0..4 {
            fused.step_repeatable_ok(RATE, |model| loss(model, step));
            scales.push(fused.last_step().loss_scale.unwrap());
        }
        assert!(scales[3] > scales[0], "{mode:?}: {scales:?}");
        let mut again = loaded(fuse(), &fused);
        for step in 4..6 {
            let steps = [&mut fused, &mut again].map(|fused| {
                fused.step_repeatable_ok(RATE, |model| loss(model, step));
                let report = fused.last_step();
                (report.loss_scale, report.clipping, report.gradient_norm)
            });
            assert_eq!(steps[0].0, steps[1].0, "{mode:?}");
            let [(_, a, x), (_, b, y)] = steps;
            let near = |a: Option<f64>, b: Option<f64>| (a.unwrap() - b.unwrap()).abs() < 1e-3;
            assert!(near(a, b) && near(x, y), "{mode:?}: {steps:?}");
        }
    }
}

/// `fused` with the weights and states of another.
fn loaded(
    mut fused: FusedOptimizer<Network>,
    other: &FusedOptimizer<Network>,
) -> FusedOptimizer<Network> {
    let record = other.model().into_record();
    fused.change_model_ok(|model| model.load_record(record));
    fused.load_record_ok(other.to_record());
    fused
}

on_every_backend!(
    a_run_resumes_with_offload_and_without,
    a_training_can_be_made_again_with_another_mode,
    the_state_of_policies_is_in_the_records,
);
