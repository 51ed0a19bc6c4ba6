//! A learner with offloaded states, updates or weights writes the same files as stock Burn.

use super::*;

/// A device that stands in for one with memory of its own.
fn there() -> Device {
    cpus()[1].clone()
}

/// A fused training with `offload` of a model that is on the host, or one in stock Burn of a model on the device.
fn launch(initial: &Regression, offload: Option<Offload>, run: Run, folder: &Path) -> Regression {
    let Some(offload) = offload else {
        let model = copy(initial, || Regression::init_on(&there()));
        return run.in_way(false, model, folder);
    };
    let offload = OffloadConfig::new(offload).with_min_elements(2);
    let run = Run {
        strategy: Some(|| ExecutionStrategy::SingleDevice(there())),
        config: FusedConfig::offload(offload),
        ..run
    };
    run.in_way(true, copy(initial, Regression::init), folder)
}

#[test]
fn offloaded_training_and_its_checkpoints_equal_stock() {
    let initial = Regression::init();
    let of_stock = folder();
    let stock = launch(&initial, None, Run::new(3), of_stock.path());
    for mode in OFFLOADS {
        let folder = folder();
        let whole = launch(&initial, Some(mode), Run::new(3), folder.path());
        assert_equal_weights(&stock, &whole);
        assert_eq!(files(of_stock.path()), files(folder.path()), "{mode:?}");
        for [first, then] in [[Some(mode), None], [None, Some(mode)]] {
            let resumed = Run::new(3).resumed(|run, folder| {
                let mode = if run.resume.is_none() { first } else { then };
                launch(&initial, mode, run, folder)
            });
            assert_equal_weights(&stock, &resumed);
        }
    }
}
