//! Records are ordinary records, in both directions and at any step.

use super::*;

fn offloaded_run_resumes_in_another_mode(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    for optimizer in optimizers(device) {
        let mut plain = offloaded(twin(&initial), optimizer.clone(), device, None);
        train_fused(&mut plain, batches.len(), RATE, loss);
        for (before, after) in changes(device) {
            let mut fused = offloaded(twin(&initial), optimizer.clone(), device, before);
            train_fused(&mut fused, 3, RATE, loss);
            let model = Network::init(device).load_record(fused.model().into_record());
            let mut again = offloaded(model, optimizer.clone(), device, after);
            again.load_record(fused.to_record()).unwrap();
            train_fused(&mut again, 3, RATE, |model, step| loss(model, step + 3));
            assert_equal_weights(&plain.model(), &again.model());
            // No part of the states is lost.
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

fn offload_mode_changed_between_steps_changes_no_weight(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    let mut plain = adam(twin(&initial), device, None);
    let mut fused = adam(twin(&initial), device, None);
    for (step, mode) in MODES.into_iter().chain([MODES[0]]).enumerate() {
        fused = fused
            .with_config_on(FusedConfig::offload(config(device, mode)), device)
            .unwrap();
        fused.step(RATE, |model| loss(model, step)).unwrap();
    }
    train_fused(&mut plain, 6, RATE, loss);
    assert_equal_weights(&plain.model(), &fused.model());
}

on_every_backend!(
    offloaded_run_resumes_in_another_mode,
    offload_mode_changed_between_steps_changes_no_weight,
);
