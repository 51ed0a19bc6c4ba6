//! State that a forward pass reads and updates: both runs of a block read the initial state, and it is updated once.

use burn::module::RunningState;

use super::*;

/// A layer that is centered by a moving average of its own outputs.
#[derive(Module, Debug)]
struct Centered {
    layer: Linear,
    center: RunningState<Tensor<1>>,
    #[module(skip)]
    read: Read,
}

/// The way in which the layer reads its state.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Read {
    /// With `value`, which in stock Burn can be one update older.
    Late,
    /// With `value_sync`, as batch normalization does.
    InTime,
}

impl Centered {
    fn init(read: Read, device: &Device) -> Self {
        Self {
            layer: LinearConfig::new(6, 6).init(device),
            center: RunningState::new(Tensor::zeros([6], device)),
            read,
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let center = match self.read {
            Read::Late => self.center.value(),
            Read::InTime => self.center.value_sync(),
        };
        let y = self.layer.forward(x);
        let mean = y.clone().detach().mean_dim(0).reshape([6]);
        let update = center.clone() * 0.7 + mean * 0.3;
        self.center.update(update.detach());
        (y - center.unsqueeze()).tanh()
    }
}

/// The caller of the layers.
#[derive(Clone, Copy)]
enum Way {
    Plain,
    Blocks,
    /// With a closure that captures a value.
    Capturing,
    /// One block in another.
    Nested,
}

/// Every layer once, or `twice`.
fn loss(layers: &Vec<Centered>, x: Tensor<2>, way: Way, twice: bool) -> Tensor<1> {
    let run = |layer: &Centered, x: Tensor<2>| layer.forward(x);
    let factor = 1.0;
    let again = if twice { &layers[..] } else { &[] };
    let all = layers.iter().chain(again);
    let x = match way {
        Way::Plain => all.fold(x, |x, layer| run(layer, x)),
        Way::Blocks => all.fold(x, |x, layer| gradient_checkpointing(layer, x, run)),
        Way::Capturing => all.fold(x, |x, layer| {
            gradient_checkpointing(layer, x, move |layer: &Centered, x| run(layer, x * factor))
        }),
        Way::Nested => gradient_checkpointing(layers, x, move |layers: &Vec<Centered>, x| {
            layers
                .iter()
                .fold(x, |x, layer| gradient_checkpointing(layer, x, run))
        }),
    };
    x.powi_scalar(2).mean()
}

const WAYS: [Way; 4] = [Way::Plain, Way::Blocks, Way::Capturing, Way::Nested];

fn layers(read: Read, device: &Device) -> Vec<Centered> {
    (0..2).map(|_| Centered::init(read, device)).collect()
}

/// In stock, states are read with `value_sync`, which is what both ways to read give in fused training. Exact clipping has two
/// passes.
fn state_in_blocks_is_that_of_stock_in_every_run(device: &Device) {
    let xs = xs(device);
    let adamw = || AdamWConfig::new().init();
    let kept = GradientCheckpointingConfig::new().with_keep_activations(vec![true; 8]);
    let cases = [
        (FusedConfig::new(), false, &WAYS[..]),
        (
            FusedConfig::new().with_gradient_checkpointing(kept),
            true,
            &WAYS[1..2],
        ),
        (FusedConfig::exact(1e9), false, &WAYS),
        (FusedConfig::new(), true, &WAYS[1..2]),
    ];
    for read in [Read::Late, Read::InTime] {
        for (config, twice, ways) in &cases {
            let initial = layers(read, device);
            let stock = copy(&initial, || layers(Read::InTime, device));
            let stock = train_stock(stock, &mut adamw(), 5, RATE, |model, step| {
                loss(model, xs[step].clone(), Way::Plain, *twice)
            });
            for way in *ways {
                let model = copy(&initial, || layers(read, device));
                let fused = FusedOptimizer::new(model, adamw()).unwrap();
                let mut fused = fused.with_config(config.clone()).unwrap();
                for x in &xs {
                    fused
                        .step_repeatable(RATE, |model| loss(model, x.clone(), *way, *twice))
                        .unwrap();
                }
                assert_equal_weights(&stock.valid(), &fused.valid());
            }
        }
    }
}

on_every_cpu_backend!(state_in_blocks_is_that_of_stock_in_every_run);
