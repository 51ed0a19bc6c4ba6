//! A server that is lost during a step ends the step within the timeout, and the training continues from its last
//! checkpoint.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::*;

type Lose = Box<dyn FnOnce() + Send>;

/// Asserts that a training whose `device` is lost by `lose` in its fourth step ends with an error after `least` to
/// `most`. Then it continues on the device of `again` from its last checkpoint to the same weights.
pub fn assert_resumed(
    what: &str,
    device: Device,
    lose: impl FnOnce() + Send + 'static,
    [least, most]: [Duration; 2],
    again: impl FnOnce() -> Device,
) {
    let initial = Net::init(&flex());
    let batches: Vec<_> = (0..6).map(|_| batch()).collect();
    let training = |device: &Device| {
        let model = copy(&initial, || Net::init(device));
        let optimizer = backburn::optim::AdamWConfig::new().init();
        FusedOptimizer::new(model, optimizer).unwrap()
    };
    let step = |fused: &mut FusedOptimizer<Net>, batch: &Tensor<2>, device: &Device| {
        let x = batch.clone().to_device(device);
        fused.step(RATE, |model| model.loss(x)).map(drop)
    };
    let mut expected = training(&flex());
    for batch in &batches {
        step(&mut expected, batch, &flex()).unwrap();
    }

    let run = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(run.path());
    let doomed: Arc<Mutex<Option<Lose>>> = Arc::default();
    let held = doomed.clone();
    // After the gradient of the last layer is complete.
    let loses = hook(move |it| {
        if it.path == "output.weight"
            && let Some(lose) = held.lock().unwrap().take()
        {
            lose();
        }
        Answer::Use
    });
    let mut fused = training(&device).with_hook(ParamGroup::all(), loses);
    for (index, batch) in batches[..3].iter().enumerate() {
        step(&mut fused, batch, &device).unwrap();
        if index == 1 {
            checkpoint.save(&fused, &Progress::new(2)).unwrap();
        }
    }
    *doomed.lock().unwrap() = Some(Box::new(lose));
    let start = Instant::now();
    let error = step(&mut fused, &batches[3], &device).unwrap_err();
    let time = start.elapsed();
    println!("{what}: {time:?}, {error}");
    assert_matches!(error, FusedError::DeviceLost { .. });
    assert!(least <= time && time <= most, "{what}: {time:?}");
    // The training does not wait for it again.
    let saved = checkpoint.save(&fused, &Progress::new(4)).unwrap_err();
    assert_matches!(saved, CheckpointError::Devices { .. });
    let error = step(&mut fused, &batches[3], &device).unwrap_err();
    assert_matches!(error, FusedError::DeviceLost { .. });
    drop(fused);
    let again_in = start.elapsed();
    assert!(
        again_in <= most + Duration::from_secs(2),
        "{what}: {again_in:?}"
    );

    let device = again();
    let mut fused = training(&device);
    let progress: Progress = checkpoint.load(&mut fused).unwrap();
    for batch in &batches[progress.step as usize..] {
        step(&mut fused, batch, &device).unwrap();
    }
    assert_equal_weights(&expected.model(), &fused.model().fork(&flex()));
}

#[test]
fn killed_server_in_step_resumes_from_checkpoint() {
    in_time(|| {
        let mut server = Server::start();
        let device = server.device.clone();
        let lose = move || server.kill();
        let within = [Duration::ZERO, Duration::from_secs(2)];
        let other = Server::start();
        assert_resumed("killed", device, lose, within, || other.device.clone());
    });
}

/// The timeout of a server in these tests, and the limit that includes the step itself.
pub const TIMEOUT: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(5)];

/// Runs `test`, the test of this name, in a process where servers must answer within the first [`TIMEOUT`].
pub fn with_timeout(name: &str, test: impl FnOnce() + Send + 'static) {
    let seconds = TIMEOUT[0].as_secs().to_string();
    let variable = ("BACKBURN_SERVER_TIMEOUT", seconds.as_str());
    in_own_process(name, variable, || in_time(test));
}

#[test]
fn stopped_server_in_step_resumes_from_checkpoint() {
    with_timeout(
        "resumed::stopped_server_in_step_resumes_from_checkpoint",
        || {
            let server = Arc::new(Server::start());
            let (device, stopped) = (server.device.clone(), server.clone());
            let other = Server::start();
            let again = || other.device.clone();
            assert_resumed("stopped", device, move || stopped.stop(), TIMEOUT, again);
        },
    );
}

#[test]
fn silent_link_in_step_resumes_from_checkpoint() {
    with_timeout(
        "resumed::silent_link_in_step_resumes_from_checkpoint",
        || {
            let server = Arc::new(Server::start());
            let (device, silent) = (server.device.clone(), server.clone());
            // The same server, by another address.
            let again = || connect(Proxy::to(server.address).address);
            assert_resumed(
                "silent",
                device,
                move || silent.fall_silent(),
                TIMEOUT,
                again,
            );
        },
    );
}
