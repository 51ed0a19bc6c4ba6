//! A loaded training takes no more memory than the saved one.

use backburn::optim::{AdamWConfig, compact_records};

use super::{ALONE, BYTES, device};

use crate::common::*;

type Model = Vec<Linear>;

const PARAMETERS: usize = 4 * (256 * 256 + 256);

fn training(optimizer: ModuleOptimizer) -> FusedOptimizer<Model> {
    let layers = (0..4).map(|_| LinearConfig::new(256, 256).init(&device()));
    FusedOptimizer::new_ok(layers.collect(), optimizer)
}

/// In multiples of the parameters' bytes, since `before`, after some steps: states are written in place by then.
fn held(fused: &mut FusedOptimizer<Model>, before: usize) -> f64 {
    for _ in 0..3 {
        fused.step_ok(1e-3, |model| {
            let x = Tensor::<2>::ones([4, 256], &device());
            model
                .iter()
                .fold(x, |x, layer| layer.forward(x).tanh())
                .mean()
        });
    }
    (BYTES.current_usage() - before) as f64 / (4 * PARAMETERS) as f64
}

/// A training that has gone through `load` holds what it held before.
fn holds_the_same(
    optimizer: ModuleOptimizer,
    config: &FusedConfig,
    load: impl Fn(&mut FusedOptimizer<Model>),
) {
    let _alone = ALONE.lock();
    // Threads of the backend have buffers of their own.
    held(&mut training(optimizer.clone()), 0);
    let before = BYTES.current_usage();
    let mut fused = training(optimizer).with_config_on_ok(config.clone(), &Device::flex());
    let first = held(&mut fused, before);
    load(&mut fused);
    let then = held(&mut fused, before);
    assert!(
        then < first + 0.05,
        "{first:.2} P before, {then:.2} P after"
    );
}

#[test]
fn a_loaded_record_leaves_nothing_behind_but_states() {
    let codes = AdamWConfig::new().with_state_format(StateFormat::Bits8);
    for optimizer in [
        AdamWConfig::new().init(),
        codes.init(),
        burn::optim::AdamWConfig::new().init(),
    ] {
        holds_the_same(optimizer.clone(), &FusedConfig::new(), |fused| {
            let record = fused.to_record();
            fused.load_record_ok(record);
        });
        holds_the_same(optimizer, &FusedConfig::new(), |fused| {
            let record = compact_records(|| fused.to_record());
            fused.load_record_ok(record);
        });
    }
}

#[test]
fn a_resumed_training_leaves_nothing_behind_but_states() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    holds_the_same(AdamWConfig::new().init(), &FusedConfig::new(), |fused| {
        checkpoint.save(fused, &Progress::new(1)).unwrap();
        let _: Progress = checkpoint.load(fused).unwrap();
    });
}
