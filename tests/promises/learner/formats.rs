//! A learner whose weights are in bf16, with their low bits in the optimizer state, writes what stock writes.

use backburn::optim::{AdamWConfig, LionConfig};

use super::{Regression, Run, files};
use crate::common::*;

fn optimizers() -> [ModuleOptimizer; 2] {
    [
        AdamWConfig::new()
            .with_weight_format(WeightFormat::Split24)
            .init(),
        LionConfig::new()
            .with_weight_format(WeightFormat::Split24)
            .init(),
    ]
}

/// The layers in bf16, the norm in f32.
fn init() -> Regression {
    let Regression {
        input,
        norm,
        output,
    } = Regression::init();
    Regression {
        input: backburn::cast(input, FloatDType::BF16).unwrap(),
        norm,
        output: backburn::cast(output, FloatDType::BF16).unwrap(),
    }
}

fn run(epochs: usize, resume: Option<usize>, optimizer: &ModuleOptimizer) -> Run {
    Run {
        resume,
        optimizer: optimizer.clone(),
        ..Run::new(epochs)
    }
}

#[test]
fn a_training_with_low_bits_writes_what_stock_writes() {
    let initial = init();
    for optimizer in optimizers() {
        let [stock_folder, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let stock = run(3, None, &optimizer).stock(copy(&initial, init), stock_folder.path());
        let fused = run(3, None, &optimizer).fused(copy(&initial, init), folder.path());
        assert!(fused.error.is_none(), "{:?}", fused.error);
        assert_equal_weights(&stock.model, &fused.model);
        assert_eq!(files(stock_folder.path()), files(folder.path()));
    }
}

#[test]
fn checkpoints_with_low_bits_go_both_ways() {
    let initial = init();
    let model = || copy(&initial, init);
    for optimizer in optimizers() {
        let whole_folder = tempfile::tempdir().unwrap();
        let whole = run(4, None, &optimizer).stock(model(), whole_folder.path());

        let folder = tempfile::tempdir().unwrap();
        run(2, None, &optimizer).fused(model(), folder.path());
        let resumed = run(4, Some(2), &optimizer).stock(init(), folder.path());
        assert_equal_weights(&whole.model, &resumed.model);

        let folder = tempfile::tempdir().unwrap();
        run(2, None, &optimizer).stock(model(), folder.path());
        let resumed = run(4, Some(2), &optimizer).fused(init(), folder.path());
        assert_equal_weights(&whole.model, &resumed.model);
    }
}
