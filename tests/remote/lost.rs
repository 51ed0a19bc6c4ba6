//! Tests of lost servers.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::resumed::{TIMEOUT, with_timeout};
use super::*;
use crate::common::normed::Normed;

#[test]
fn server_killed_while_replicas_train_ends_step() {
    for (killed, millis, sharding) in [
        (0, 30, Sharding::State),
        (1, 55, Sharding::Full),
        (2, 80, Sharding::State),
        (0, 105, Sharding::Full),
    ] {
        in_time(move || {
            let mut servers = [Server::start(), Server::start(), Server::start()];
            let devices: Vec<Device> = servers.iter().map(|server| server.device.clone()).collect();
            let batches = |devices: &[Device]| -> Vec<Tensor<2>> {
                let batches = devices.iter();
                batches.map(|device| Tensor::ones([5, 6], device)).collect()
            };
            let mut fused = FusedReplicas::new(Net::init(&flex()), adamw(), devices.clone())
                .unwrap()
                .with_config(FusedConfig::sharded(sharding))
                .unwrap();
            fused.step(RATE, batches(&devices), Net::loss).unwrap();
            servers.swap(killed, 2);
            let [first, second, mut doomed] = servers;
            let killer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(millis));
                doomed.kill();
            });
            let error = loop {
                // Creating a batch may fail first.
                let Ok(batches) = std::panic::catch_unwind(|| batches(&devices)) else {
                    break None;
                };
                if let Err(error) = fused.step(RATE, batches, Net::loss) {
                    break Some(error);
                }
            };
            killer.join().unwrap();
            error.iter().for_each(assert_clean);

            // The remaining servers continue to train, with others.
            let devices = &[first.connected_again(), second.connected_again()];
            let model = Net::init(&flex());
            let mut fused = FusedReplicas::new(model, adamw(), devices.to_vec()).unwrap();
            fused.step(RATE, batches(devices), Net::loss).unwrap();
        });
    }
}

#[test]
fn lost_server_before_training_is_an_error() {
    with_timeout("lost::lost_server_before_training_is_an_error", || {
        for stops in [false, true] {
            let mut server = Server::start();
            match stops {
                true => server.stop(),
                false => server.kill(),
            }
            let start = Instant::now();
            let error = check_device(&server.device, FloatDType::F32).unwrap_err();
            assert_matches!(error, FusedError::DeviceUnavailable { .. });
            assert!(start.elapsed() <= TIMEOUT[1], "{:?}", start.elapsed());
        }
    });
}

/// A read in a step has the same timeout as the end of the step.
#[test]
fn lost_server_is_an_error_with_every_policy() {
    with_timeout("lost::lost_server_is_an_error_with_every_policy", || {
        for (config, stops) in [
            (FusedConfig::new(), false),
            (FusedConfig::lagged(1.0), false),
            (FusedConfig::exact(1.0), false),
            (FusedConfig::exact(1.0), true),
            (FusedConfig::scaling(LossScalingConfig::new()), true),
        ] {
            let mut server = Server::start();
            let model = Net::init(&server.device);
            let mut fused = FusedOptimizer::new(model, adamw())
                .unwrap()
                .with_config(config)
                .unwrap();
            let x = Tensor::<2>::ones([5, 6], &server.device);
            let mut step = || fused.step_repeatable(RATE, |model| model.loss(x.clone()));
            step().unwrap();
            match stops {
                true => server.stop(),
                false => server.kill(),
            }
            let start = Instant::now();
            let error = step().map(drop).unwrap_err();
            println!("{:?}, {error}", start.elapsed());
            assert_matches!(error, FusedError::DeviceLost { .. });
            assert!(start.elapsed() <= TIMEOUT[1], "{:?}", start.elapsed());
        }
    });
}

#[test]
fn stopped_server_of_rank_ends_step_on_all() {
    with_timeout("lost::stopped_server_of_rank_ends_step_on_all", || {
        for sharding in [Sharding::State, Sharding::Full] {
            let server = Server::start();
            let devices = [flex(), server.device.clone()];
            let batches = ones(&devices);
            let mut fused = FusedReplicas::new(Net::init(&flex()), adamw(), devices)
                .unwrap()
                .with_config(FusedConfig::sharded(sharding))
                .unwrap();
            fused.step(RATE, batches.clone(), Net::loss).unwrap();
            server.stop();
            let start = Instant::now();
            let error = fused.step(RATE, batches, Net::loss).unwrap_err();
            println!("{:?}, {error}", start.elapsed());
            assert_clean(&error);
            assert!(start.elapsed() <= TIMEOUT[1], "{:?}", start.elapsed());
        }
    });
}

#[test]
fn lost_server_takes_states_and_no_weights() {
    in_time(|| {
        let server = Server::start();
        let devices = [flex(), server.device.clone()];
        let initial = Net::init(&flex());
        let batches = ones(&devices);
        let doomed = Arc::new(Mutex::new(None::<Server>));
        let held = doomed.clone();
        // After the sum of its gradients is complete, so that the update fails. By size, the server owns the second
        // largest parameter.
        let kills = hook(move |it| {
            if it.path == "output.weight"
                && let Some(mut server) = held.lock().unwrap().take()
            {
                server.kill();
            }
            Answer::Use
        });
        let mut fused = FusedReplicas::new(initial, adamw(), devices)
            .unwrap()
            .with_config(FusedConfig::new().with_ownership(Ownership::BySize))
            .unwrap()
            .with_hook(ParamGroup::all(), kills);
        fused.step(RATE, batches.clone(), Net::loss).unwrap();
        let before = fused.model().output.weight.val().into_data();
        *doomed.lock().unwrap() = Some(server);
        assert_clean(&fused.step(RATE, batches, Net::loss).unwrap_err());
        let weights = weights(&fused.model());
        assert_eq!(weights.len(), 4);
        for (path, values) in weights {
            assert!(values.iter::<f32>().all(f32::is_finite), "{path}");
        }
        assert_eq!(fused.model().output.weight.val().into_data(), before);
    });
}

#[test]
fn lost_server_with_running_statistics_is_an_error() {
    in_time(|| {
        let mut server = Server::start();
        let devices = [flex(), server.device.clone()];
        let model = Normed::init(6, 3, &flex());
        let loss = |model: &Normed, x: Tensor<2>| model.forward(x).powi_scalar(3).mean();
        let batches = ones(&devices);
        let mut fused = FusedReplicas::new(model, adamw(), devices).unwrap();
        fused.step(RATE, batches.clone(), loss).unwrap();
        server.kill();
        assert_clean(&fused.step(RATE, batches, loss).unwrap_err());
        assert_eq!(weights(&fused.model()).len(), 6);
    });
}
