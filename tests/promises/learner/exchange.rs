//! The model and the optimizer return to the learner for every checkpoint, which does not change the training.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::records::exchange::{TYPES, optimizers};

/// The layers in `dtype`, the norm in f32, as Burn's are.
pub fn in_dtype(dtype: FloatDType) -> Regression {
    let whole = Regression::init();
    Regression {
        input: backburn::cast(whole.input, dtype).unwrap(),
        norm: whole.norm,
        output: backburn::cast(whole.output, dtype).unwrap(),
    }
}

#[test]
fn checkpoint_of_any_optimizer_and_type_equals_stock() {
    for optimizer in optimizers::all() {
        for dtype in TYPES {
            println!("{}, {dtype:?}", optimizer.name);
            let initial = in_dtype(dtype);
            let run = Run {
                optimizer: (optimizer.make)(),
                ..Run::new(2)
            };
            let train = |is_fused: bool| {
                let folder = folder();
                let model = copy(&initial, || in_dtype(dtype));
                let model = run.in_way(is_fused, model, folder.path());
                (model, files(folder.path()))
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
