//! Comparison of stock and fused training from the same record.

use backburn::FusedOptimizer;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Bytes, Device, Tensor, TensorData};

/// The values of all float parameters by path, and running statistics with the updates that Burn keeps pending.
pub fn weights<M: Module>(model: &M) -> Vec<(String, TensorData)> {
    #[derive(Default)]
    struct Weights {
        names: Vec<String>,
        found: Vec<(String, TensorData)>,
    }

    impl ModuleVisitor for Weights {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.names.push(name.to_string());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.names.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // An adapter shows its quantized values only to code that records them.
            let value = match param.is_initialized() {
                true => param.base(),
                false => param.transform_for_save().val(),
            };
            let value = value.inner().into_data();
            // Copied immediately: on wgpu the data would contain later in-place writes.
            let bytes = Bytes::from_bytes_vec(value.as_bytes().to_vec());
            let value = TensorData::from_bytes(bytes, value.shape(), value.dtype());
            self.found.push((self.names.join("."), value));
        }
    }

    drop(model.valid()); // It merges pending updates.
    let mut weights = Weights::default();
    model.visit(&mut weights);
    weights.found
}

/// Returns `true` if the kernels of `device` compute the same bits in any fusion, as on CPU backends.
pub fn is_exact(device: &Device) -> bool {
    #[allow(unreachable_patterns, unused_variables)] // What is there depends on the build.
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "cubecl")]
        burn::backend::DispatchDevice::Cube(_) => false,
        _ => true,
    }
}

/// The path of each parameter with its value in both models. Panics unless they have the same paths, one at least.
#[track_caller]
fn pairs<M: Module>(a: &M, b: &M) -> impl Iterator<Item = (String, TensorData, TensorData)> {
    let (a, b) = (weights(a), weights(b));
    let [of_a, of_b] = [&a, &b].map(|all| all.iter().map(|it| &it.0).collect::<Vec<_>>());
    assert_eq!(of_a, of_b);
    assert!(!a.is_empty());
    a.into_iter().zip(b).map(|((path, a), (_, b))| (path, a, b))
}

/// Panics with the path of the first parameter that differs: on CPU backends in a bit, on others by
/// more than a thousandth of its size or a ten-thousandth of one.
#[track_caller]
pub fn assert_equal_weights<M: Module>(stock: &M, fused: &M) {
    let exact = stock.devices().iter().all(is_exact);
    for (path, stock, fused) in pairs(stock, fused) {
        assert_eq!(stock.dtype(), fused.dtype(), "dtype of `{path}`");
        assert_eq!(stock.shape(), fused.shape(), "shape of `{path}`");
        let equal = match exact {
            true => stock.as_bytes() == fused.as_bytes(),
            false => {
                let near = |(a, b): (f64, f64)| (a - b).abs() <= 1e-4 + 1e-3 * a.abs();
                stock.iter::<f64>().zip(fused.iter::<f64>()).all(near)
            }
        };
        assert!(equal, "`{path}` differs: stock {stock}, fused {fused}");
    }
}

/// Panics with the path of the first parameter that differs by more than `absolute` and this part of its size.
#[track_caller]
pub fn assert_near_weights<M: Module>(expected: &M, found: &M, absolute: f64, relative: f64) {
    for (path, expected, found) in pairs(expected, found) {
        let near = |(a, b): (f64, f64)| (a - b).abs() <= absolute + relative * a.abs();
        let near = expected.iter::<f64>().zip(found.iter::<f64>()).all(near);
        assert!(near, "`{path}` differs: {found} for {expected}");
    }
}

/// Panics unless training changed exactly the parameters for which `trained` returns `true`.
#[track_caller]
pub fn assert_changed<M: Module>(before: &M, after: &M, trained: impl Fn(&str) -> bool) {
    for (path, before, after) in pairs(before, after) {
        let changed = before.as_bytes() != after.as_bytes();
        assert_eq!(changed, trained(&path), "`{path}` changed: {changed}");
    }
}

/// Panics if training changed a parameter for which `kept` returns `true`. Running statistics may have changed.
#[track_caller]
pub fn assert_kept<M: Module>(before: &M, after: &M, kept: impl Fn(&str) -> bool) {
    for (path, before, after) in pairs(before, after) {
        let same = before.as_bytes() == after.as_bytes();
        let may_change = path.contains("running") || !kept(&path);
        assert!(same || may_change, "`{path}` changed");
    }
}

/// A copy that shares nothing with `model`, through its record.
pub fn copy<M: Module>(model: &M, init: impl FnOnce() -> M) -> M {
    init().load_record(model.clone().into_record())
}

/// Trains as a stock loop does.
pub fn train_stock<M: Module>(
    mut model: M,
    optimizer: &mut ModuleOptimizer,
    steps: usize,
    learning_rate: f64,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> M {
    for step in 0..steps {
        let gradients = loss(&model, step).backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = optimizer.step(learning_rate, model, gradients);
    }
    model
}

/// Trains the same way, fused.
pub fn train_fused<M: Module>(
    fused: &mut FusedOptimizer<M>,
    steps: usize,
    learning_rate: f64,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) {
    for step in 0..steps {
        fused
            .step(learning_rate, |model| loss(model, step))
            .unwrap();
    }
}
