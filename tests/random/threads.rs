//! Trainings whose tensors are large enough that `flex` and the optimizers compute on several threads. They draw nothing, and on a
//! pool they must not be disturbed by tests that do.

use backburn::optim;
use rayon::ThreadPoolBuilder;

use crate::ALONE;
use crate::common::*;

/// `flex` computes products on several threads from 192 x 192 x 192 on.
const WIDTH: usize = 256;
const STEPS: usize = 2;
const RATE: f64 = 1e-3;

/// A way to train.
#[derive(Clone)]
struct Way {
    optimizer: ModuleOptimizer,
    config: FusedConfig,
    in_blocks: bool,
    /// The result equals that of stock Burn's AdamW to the bit.
    equals_stock: bool,
}

fn ways() -> Vec<Way> {
    let way = |optimizer: ModuleOptimizer, config: FusedConfig, in_blocks, equals_stock| Way {
        optimizer,
        config,
        in_blocks,
        equals_stock,
    };
    let plain = FusedConfig::new;
    let burns = || AdamWConfig::new().init();
    let eight = optim::AdamWConfig::new().with_state_format(StateFormat::Bits8);
    let lagged = Some(GlobalNormClippingConfig::Lagged(1e-3));
    let averaging = Some(WeightAveragingConfig::new().with_decay(Some(0.9)));
    let scaling = Some(LossScalingConfig::new().with_initial_scale(8.0));
    vec![
        way(burns(), plain(), false, true),
        way(burns(), plain(), true, true),
        way(burns(), plain().with_averaging(averaging), false, true),
        way(burns(), plain().with_loss_scaling(scaling), false, true),
        way(burns(), FusedConfig::exact(1e-3), true, false),
        way(burns(), plain().with_clipping(lagged), false, false),
        way(eight.init(), plain(), true, false),
    ]
}

/// Trains copies of `initial` in one `way`, and returns the weights.
fn train(way: &Way, initial: &Vec<Linear>, x: &Tensor<2>) -> Vec<(String, TensorData)> {
    let model = copy(initial, || linears(2, WIDTH, &x.device()));
    let mut fused = FusedOptimizer::new(model, way.optimizer.clone())
        .unwrap()
        .with_config(way.config.clone())
        .unwrap();
    for _ in 0..STEPS {
        fused
            .step_repeatable(RATE, |model| {
                loss_of_layers(model, way.in_blocks, x.clone())
            })
            .unwrap();
    }
    weights(&fused.model())
}

fn large_tensors_train_same_on_any_number_of_threads(device: &Device) {
    let _alone = ALONE.lock();
    let initial = linears(2, WIDTH, device);
    let x = Tensor::<2>::random([WIDTH, WIDTH], Distribution::Default, device);
    let mut adamw = AdamWConfig::new().init();
    let stock = copy(&initial, || linears(2, WIDTH, device));
    let loss = |model: &Vec<Linear>, _| loss_of_layers(model, false, x.clone());
    let stock = weights(&train_stock(stock, &mut adamw, STEPS, RATE, loss));
    for way in ways() {
        let expected = train(&way, &initial, &x);
        if way.equals_stock {
            assert_eq!(expected, stock, "{:?}", way.config);
        }
        for threads in [1, 2, 4] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build();
            let found = pool.unwrap().install(|| train(&way, &initial, &x));
            assert_eq!(found, expected, "{threads} threads, {:?}", way.config);
        }
    }
}

fn large_tensors_on_replicas_train_as_stock(device: &Device) {
    let _alone = ALONE.lock();
    let initial = linears(2, WIDTH, device);
    let xs: [Tensor<2>; 2] =
        [(); 2].map(|()| Tensor::random([WIDTH, WIDTH], Distribution::Default, device));
    let mut optimizer = AdamWConfig::new().init();
    let mut stock = copy(&initial, || linears(2, WIDTH, device));
    for _ in 0..STEPS {
        let loss = |model: &Vec<Linear>, x: &Tensor<2>| loss_of_layers(model, false, x.clone());
        stock = step_stock(stock, &mut optimizer, RATE, &xs, loss);
    }
    let devices = [(); 2].map(|()| device.clone());
    for in_blocks in [false, true] {
        let model = copy(&initial, || linears(2, WIDTH, device));
        let mut fused =
            FusedReplicas::new(model, AdamWConfig::new().init(), devices.clone()).unwrap();
        for _ in 0..STEPS {
            let loss = move |model: &Vec<Linear>, x| loss_of_layers(model, in_blocks, x);
            fused.step(RATE, xs.clone(), loss).unwrap();
        }
        assert_equal_weights(&stock, &fused.model());
    }
}

on_backend!(flex():
    large_tensors_train_same_on_any_number_of_threads,
    large_tensors_on_replicas_train_as_stock
);
