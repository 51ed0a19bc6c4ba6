//! The learner has its model and its optimizer back for every checkpoint: training goes on as if it had not looked.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Regression, Run, files};
use crate::common::*;
use crate::exchange::{TYPES, optimizers};

/// The layers in `dtype`, the norm in f32, as Burn's are.
fn init(dtype: FloatDType) -> Regression {
    let whole = Regression::init();
    Regression {
        input: backburn::cast(whole.input, dtype).unwrap(),
        norm: whole.norm,
        output: backburn::cast(whole.output, dtype).unwrap(),
    }
}

#[test]
fn a_checkpoint_of_every_optimizer_in_every_float_type_disturbs_nothing() {
    for optimizer in optimizers::all() {
        for dtype in TYPES {
            println!("{}, {dtype:?}", optimizer.name);
            let initial = init(dtype);
            let train = |fused: bool| {
                let folder = tempfile::tempdir().unwrap();
                let run = Run {
                    optimizer: (optimizer.make)(),
                    ..Run::new(2)
                };
                let model = copy(&initial, || init(dtype));
                let result = match fused {
                    true => run.fused(model, folder.path()),
                    false => run.stock(model, folder.path()),
                };
                assert!(result.error.is_none(), "{:?}", result.error);
                (result.model, files(folder.path()))
            };
            let [stock, fused] =
                [false, true].map(|fused| catch_unwind(AssertUnwindSafe(|| train(fused))));
            match (stock, fused) {
                (Ok((stock, stock_files)), Ok((fused, files))) => {
                    assert_equal_weights(&stock, &fused);
                    assert_eq!(stock_files, files);
                }
                (Err(_), Err(_)) => assert!(optimizer.refuses(dtype).is_some()),
                (stock, fused) => panic!("{}, {}", stock.is_ok(), fused.is_ok()),
            }
        }
    }
}
