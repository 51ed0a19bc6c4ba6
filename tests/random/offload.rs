//! Blocks with offloaded weights.

use rayon::ThreadPoolBuilder;
use rayon::prelude::*;

use crate::ALONE;
use crate::common::*;

const RATE: f64 = 1e-2;

/// A thread of a pool that waits for a fetch runs another block.
#[test]
fn offloaded_blocks_on_threads_of_a_pool_train_as_without() {
    let _alone = ALONE.lock();
    in_time(|| {
        let device = &flex();
        let stack = Stack::init(3, 16, device);
        let xs = randoms(3, [8, 16], device);
        let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let trained = |offload: Option<OffloadConfig>| {
            let config = FusedConfig::new().with_offload(offload);
            let fused = FusedOptimizer::new(stack.clone(), AdamConfig::new().init()).unwrap();
            let mut fused = fused.with_config_on(config, device).unwrap();
            for x in &xs {
                let loss = |stack: &Stack| {
                    let context = StepContext::current().unwrap();
                    let block = |layer: &Linear| {
                        let run = |layer: &Linear, x| layer.forward(x);
                        context.enter(|| gradient_checkpointing(layer, x.clone(), run))
                    };
                    let outputs = stack.layers.par_iter().map(block).collect();
                    Tensor::cat(outputs, 0).powi_scalar(2).mean()
                };
                pool.install(|| fused.step(RATE, loss)).unwrap();
            }
            fused.model()
        };
        let offload = offload_from_flex(Offload::Weights(OffloadedBlocks::All));
        assert_equal_weights(&trained(None), &trained(Some(offload)));
    });
}

#[derive(Module, Debug)]
struct Dropped {
    linear: Linear,
    dropout: Dropout,
}

/// Frozen weights are on the host, but the numbers of a block are those of the device that computes.
#[test]
fn dropout_after_offloaded_frozen_weight_draws_as_without() {
    let _alone = ALONE.lock();
    let [_, device] = &cpus();
    let block = || Dropped {
        linear: LinearConfig::new(8, 8).init(device),
        dropout: DropoutConfig::new(0.5).init(),
    };
    let initial: Vec<Dropped> = (0..3).map(|_| block()).collect();
    let initial = initial.freeze_group(ParamGroup::from_predicate("weight"));
    drop(initial.valid()); // Draws the weights.
    let x = Tensor::<2>::ones([4, 8], device);
    for clipping in [None, Some(GlobalNormClippingConfig::Exact(0.1))] {
        let trained = |offload: Option<OffloadConfig>| {
            device.seed(7);
            Device::flex().seed(offload.is_some().into());
            let config = FusedConfig::new()
                .with_offload(offload)
                .with_clipping(clipping);
            let fused = FusedOptimizer::new(initial.clone(), AdamConfig::new().init()).unwrap();
            let mut fused = fused.with_config_on(config, device).unwrap();
            for _ in 0..3 {
                let loss = |model: &Vec<Dropped>| {
                    let run = |block: &Dropped, x| block.dropout.forward(block.linear.forward(x));
                    let blocks = model.iter();
                    let x = blocks.fold(x.clone(), |x, it| gradient_checkpointing(it, x, run));
                    x.powi_scalar(2).mean()
                };
                fused.step_repeatable(RATE, loss).unwrap();
            }
            fused.model()
        };
        let offload = offload_from(device, Offload::Weights(OffloadedBlocks::All));
        assert_equal_weights(&trained(None), &trained(Some(offload)));
    }
}
