//! Loops, records and numbers that many tests need.

use backburn::{FusedError, FusedOptimizer};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Device, Distribution, Tensor};

use super::{copy, train_fused, train_stock, weights};

pub fn flex() -> Device {
    Device::flex().autodiff()
}

/// The devices of the backends for CPUs.
#[allow(deprecated)] // Burn 0.22 still ships ndarray.
pub fn cpus() -> [Device; 2] {
    [flex(), Device::ndarray().autodiff()]
}

/// Random tensors of one shape, such as batches.
pub fn randoms<const D: usize>(count: usize, shape: [usize; D], device: &Device) -> Vec<Tensor<D>> {
    let random = |_| Tensor::random(shape, Distribution::Default, device);
    (0..count).map(random).collect()
}

/// Trains copies of one model. Returns the initial model, the model of stock Burn, and the model of fused training.
pub fn train_both<M: Module>(
    init: impl Fn() -> M,
    optimizer: &ModuleOptimizer,
    steps: usize,
    learning_rate: f64,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> [M; 3] {
    let initial = init();
    let stock = copy(&initial, &init);
    let stock = train_stock(stock, &mut optimizer.clone(), steps, learning_rate, &loss);
    let mut fused = FusedOptimizer::new(copy(&initial, &init), optimizer.clone()).unwrap();
    train_fused(&mut fused, steps, learning_rate, &loss);
    [initial, stock, fused.model()]
}

/// The sum of the gradients of micro-batches, by Burn's accumulator.
pub fn summed<M: Module, B>(
    model: &M,
    group: &[B],
    loss: impl Fn(&M, &B) -> Tensor<1>,
) -> GradientsParams {
    let mut sum = GradientsAccumulator::new();
    for batch in group {
        let gradients = loss(model, batch).backward();
        sum.accumulate(model, GradientsParams::from_grads(gradients, model));
    }
    sum.grads()
}

/// Steps stock Burn with the sum of the gradients of micro-batches.
pub fn step_stock<M: Module, B>(
    model: M,
    optimizer: &mut ModuleOptimizer,
    learning_rate: impl Into<ModuleLearningRate>,
    group: &[B],
    loss: impl Fn(&M, &B) -> Tensor<1>,
) -> M {
    let gradients = summed(&model, group, loss);
    optimizer.step(learning_rate, model, gradients)
}

/// Accumulates all micro-batches but the last, and steps with it.
#[track_caller]
pub fn step_group<M: Module, B>(
    fused: &mut FusedOptimizer<M>,
    learning_rate: impl Into<ModuleLearningRate>,
    group: &[B],
    loss: impl Fn(&M, &B) -> Tensor<1>,
) {
    let (last, first) = group.split_last().expect("a group has micro-batches");
    for batch in first {
        fused.accumulate(|model| loss(model, batch)).unwrap();
    }
    fused
        .step_repeatable(learning_rate, |model| loss(model, last))
        .unwrap();
}

/// Panics unless the training has accumulated nothing.
#[track_caller]
pub fn assert_nothing_accumulated<M: Module>(fused: &mut FusedOptimizer<M>) {
    let nothing = Err(FusedError::NothingAccumulated);
    assert_eq!(fused.step_accumulated(0.1), nothing);
}

/// The numbers of parameters that are released, retained and frozen.
pub fn parts<M: Module>(fused: &FusedOptimizer<M>) -> (usize, usize, usize) {
    let (released, retained) = (fused.num_released(), fused.num_retained());
    (released, retained, fused.num_frozen())
}

/// A record after its way through bytes.
pub fn reread(record: OptimizerRecord) -> OptimizerRecord {
    OptimizerRecord::from_bytes(record.into_bytes().unwrap()).unwrap()
}

/// A training that continues from the weights and the record of another.
pub fn resumed<M: Module>(
    fused: &FusedOptimizer<M>,
    optimizer: ModuleOptimizer,
    init: impl FnOnce() -> M,
) -> FusedOptimizer<M> {
    let mut resumed = FusedOptimizer::new(copy(&fused.model(), init), optimizer).unwrap();
    resumed.load_record(reread(fused.to_record())).unwrap();
    resumed
}

/// The elements of all parameters.
pub fn elements<M: Module>(model: &M) -> Vec<f64> {
    let values = weights(model).into_iter();
    values
        .flat_map(|(_, value)| value.iter().collect::<Vec<f64>>())
        .collect()
}

/// The Euclidean distance between the parameters of two models.
pub fn distance<M: Module>(before: &M, after: &M) -> f64 {
    let (before, after) = (elements(before), elements(after));
    let pairs = before.iter().zip(&after);
    pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// Applies `change` to every value of `model`, as a row.
pub fn map_values<M: Module>(model: M, change: impl FnMut(ParamId, Tensor<1>) -> Tensor<1>) -> M {
    struct Change<F>(F);

    impl<F: FnMut(ParamId, Tensor<1>) -> Tensor<1>> ModuleMapper for Change<F> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let id = param.id;
            param.map(|value| {
                let (shape, is_trained) = (value.shape(), value.is_require_grad());
                let changed = (self.0)(id, value.inner().flatten(0, D - 1));
                Tensor::from_inner(changed.reshape::<D, _>(shape)).set_require_grad(is_trained)
            })
        }
    }

    model.map(&mut Change(change))
}

/// Applies `change` to the gradients of the parameters of `model`, as rows. `None` drops a gradient.
pub fn map_gradients<M: Module>(
    model: &M,
    gradients: &mut GradientsParams,
    change: impl FnMut(ParamId, Tensor<1>) -> Option<Tensor<1>>,
) {
    struct Change<'a, F>(&'a mut GradientsParams, F);

    impl<F: FnMut(ParamId, Tensor<1>) -> Option<Tensor<1>>> ModuleVisitor for Change<'_, F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(gradient) = self.0.remove::<D>(param.id) else {
                return;
            };
            let shape = gradient.shape();
            if let Some(changed) = (self.1)(param.id, gradient.flatten(0, D - 1)) {
                self.0.register(param.id, changed.reshape::<D, _>(shape));
            }
        }
    }

    model.visit(&mut Change(gradients, change));
}
