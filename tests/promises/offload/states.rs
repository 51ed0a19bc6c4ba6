//! States that are prefetched one parameter ahead and evicted during the next update change no bit and are never lost.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// The blocks of each step, in order. Some alternate, some are skipped.
const COURSES: [&[usize]; 6] = [
    &[0, 1, 2, 3],
    &[3, 1, 2, 0],
    &[0, 1],
    &[2, 3, 0],
    &[1, 3, 0, 2],
    &[0, 1, 2, 3],
];

fn loss(model: &Network, tokens: Tensor<2, Int>, order: &[usize]) -> Tensor<1> {
    let x: Tensor<2> = model.embedding.forward(tokens).flatten(0, 1);
    let run = |x, block: &usize| model.blocks[*block].forward(x);
    order.iter().fold(x, run).powi_scalar(2).mean()
}

fn with_states(device: &Device, limit: Option<usize>) -> FusedConfig {
    let offload = config(device, Offload::States);
    FusedConfig::offload(offload).with_max_bytes_in_flight(limit)
}

fn prefetched_states_in_any_order_change_no_bit(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    let loss = |model: &Network, step: usize| loss(model, batches[step].clone(), COURSES[step]);
    for optimizer in optimizers(device) {
        let mut plain = FusedOptimizer::new(twin(&initial), optimizer.clone()).unwrap();
        train_fused(&mut plain, 6, RATE, loss);
        // A software device is slow, and one limit suffices to test the handover between threads.
        let limits: &[_] = match is_exact(device) {
            true => &[None, Some(0), Some(1000)],
            false => &[None],
        };
        for &limit in limits {
            let fused = FusedOptimizer::new(twin(&initial), optimizer.clone()).unwrap();
            let mut fused = fused
                .with_config_on(with_states(device, limit), device)
                .unwrap();
            train_fused(&mut fused, 3, RATE, loss);
            // A record is complete between two steps.
            let record = fused.to_record();
            fused.load_record(record).unwrap();
            train_fused(&mut fused, 3, RATE, |model, step| loss(model, step + 3));
            assert_equal_weights(&plain.model(), &fused.model());
            assert_eq!(fused.to_record().len(), plain.to_record().len());
        }
    }
}

on_every_backend!(prefetched_states_in_any_order_change_no_bit);

/// While the state of the parameter is in flight, or has just arrived.
#[test]
fn prefetched_state_of_parameter_not_stepped_is_kept() {
    let device = Device::flex().autodiff();
    let initial = Network::init(&device);
    let batches = batches(&device);
    let good = |model: &Network, step: usize| loss(model, batches[step].clone(), COURSES[0]);
    for panics in [false, true] {
        for path in [
            "blocks.3.contract.weight",
            "blocks.2.expand.weight",
            "blocks.0.norm.gamma",
            "embedding.weight",
        ] {
            let trained = |config: Option<FusedConfig>| {
                let model = twin(&initial);
                let armed = Arc::new(AtomicBool::new(false));
                let is_armed = armed.clone();
                let at =
                    hook(
                        move |it| match it.path == path && is_armed.load(Ordering::Relaxed) {
                            true if panics => panic!("at {path}"),
                            true => Answer::Veto,
                            false => Answer::Use,
                        },
                    );
                let fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
                let mut fused = fused.with_hook(ParamGroup::all(), at);
                if let Some(config) = config {
                    fused = fused.with_config_on(config, &device).unwrap();
                }
                train_fused(&mut fused, 2, RATE, good);
                armed.store(true, Ordering::Relaxed);
                let step = || fused.step(RATE, |model| good(model, 2)).unwrap();
                assert_eq!(catch_unwind(AssertUnwindSafe(step)).is_err(), panics);
                armed.store(false, Ordering::Relaxed);
                train_fused(&mut fused, 2, RATE, |model, step| good(model, step + 3));
                fused
            };
            let plain = trained(None);
            let fused = trained(Some(with_states(&device, None)));
            assert_equal_weights(&plain.model(), &fused.model());
            assert_eq!(fused.to_record().len(), plain.to_record().len());
        }
    }
}
