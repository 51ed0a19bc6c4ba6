//! The bytes of a parameter in addition to its tensors. They matter in a model of many small parameters.

use super::{BYTES, alone, device, x};

use crate::common::*;

const PARAMETERS: usize = 2000;

fn model() -> Vec<Linear> {
    let model = linears(PARAMETERS / 2, 4, &device());
    // Burn initializes parameters when they are read.
    loss(&model, x(4)).backward();
    model
}

fn loss(model: &[Linear], x: Tensor<2>) -> Tensor<1> {
    model.iter().fold(x, |x, linear| linear.forward(x)).mean()
}

/// Bytes for each parameter since `before`, without nodes that Burn frees in the next backward pass.
fn each(before: usize) -> usize {
    drop(x(4).require_grad().mean().backward());
    (BYTES.current_usage() - before) / PARAMETERS
}

/// Compared with stock Burn: the parameters, and the parameters and optimizer states after a step.
#[test]
fn parameter_takes_two_kilobytes_more_than_in_stock() {
    alone!();
    // Bytes that Burn and the backend allocate once per process.
    drop(model());

    let before = BYTES.current_usage();
    let mut stock = model();
    let attached = each(before);
    let mut optimizer = AdamConfig::new().init();
    stock = train_stock(stock, &mut optimizer, 2, 1e-3, |model, _| loss(model, x(4)));
    let stock_bytes = [attached, each(before)];
    drop((stock, optimizer));

    let before = BYTES.current_usage();
    let mut fused = FusedOptimizer::new(model(), AdamConfig::new().init()).unwrap();
    let attached = each(before);
    train_fused(&mut fused, 2, 1e-3, |model, _| loss(model, x(4)));
    let fused_bytes = [attached, each(before)];
    println!("a parameter of stock takes {stock_bytes:?} bytes, of fused {fused_bytes:?}");
    for (stock, fused) in stock_bytes.into_iter().zip(fused_bytes) {
        assert!(fused <= stock + 2048, "{fused} bytes, in stock {stock}");
    }
}
