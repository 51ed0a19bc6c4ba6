//! State that a forward pass reads and updates: both runs of a block see it as it was, and it is updated once.

use burn::module::RunningState;

use super::*;
use crate::backends::on_every_cpu_backend;

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
    /// With `value`, which in stock can be older by an update.
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
    /// With a closure that has captured something.
    Capturing,
    /// One block in another.
    Nested,
}

fn loss(layers: &Vec<Centered>, x: Tensor<2>, way: Way) -> Tensor<1> {
    let run = |layer: &Centered, x: Tensor<2>| layer.forward(x);
    let factor = 1.0;
    let x = match way {
        Way::Plain => layers.iter().fold(x, |x, layer| run(layer, x)),
        Way::Blocks => layers
            .iter()
            .fold(x, |x, layer| gradient_checkpointing(layer, x, run)),
        Way::Capturing => layers.iter().fold(x, |x, layer| {
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

/// Trains in stock with states that are read with `value_sync`, which is what both ways to read give in fused training.
fn expected(initial: &Vec<Centered>, xs: &[Tensor<2>], device: &Device) -> Vec<Centered> {
    let model = copy(initial, || layers(Read::InTime, device));
    let loss = |model: &Vec<Centered>, step: usize| loss(model, xs[step].clone(), Way::Plain);
    train_stock(model, &mut AdamWConfig::new().init(), 5, RATE, loss)
}

fn a_block_that_reads_its_state_sees_it_as_it_was_in_both_runs(device: &Device) {
    let xs = xs(device);
    for read in [Read::Late, Read::InTime] {
        let initial = layers(read, device);
        let stock = expected(&initial, &xs, device);
        for way in WAYS {
            let model = copy(&initial, || layers(read, device));
            let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
            train_fused(&mut fused, 5, RATE, |model, step| {
                loss(model, xs[step].clone(), way)
            });
            assert_equal_weights(&stock.valid(), &fused.valid());
        }
    }
}

fn both_passes_of_exact_clipping_see_a_state_as_it_was(device: &Device) {
    let xs = xs(device);
    for read in [Read::Late, Read::InTime] {
        let initial = layers(read, device);
        let stock = expected(&initial, &xs, device);
        for way in WAYS {
            let model = copy(&initial, || layers(read, device));
            let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init())
                .with_config_ok(FusedConfig::exact(1e9));
            for x in &xs {
                fused.step_repeatable_ok(RATE, |model| loss(model, x.clone(), way));
            }
            assert_equal_weights(&stock.valid(), &fused.valid());
        }
    }
}

fn state_used_by_two_blocks_is_that_of_stock(device: &Device) {
    let xs = xs(device);
    for read in [Read::Late, Read::InTime] {
        let initial = layers(read, device);
        let twice = |model: &Vec<Centered>, x: &Tensor<2>, in_blocks| {
            let run = |layer: &Centered, x: Tensor<2>| layer.forward(x);
            let layers = model.iter().chain(model);
            let x = layers.fold(x.clone(), |x, layer| block_if(in_blocks, layer, x, run));
            x.powi_scalar(2).mean()
        };
        let stock = train_stock(
            copy(&initial, || layers(Read::InTime, device)),
            &mut AdamWConfig::new().init(),
            5,
            RATE,
            |model, step| twice(model, &xs[step], false),
        );
        let model = copy(&initial, || layers(read, device));
        let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
        train_fused(&mut fused, 5, RATE, |model, step| {
            twice(model, &xs[step], true)
        });
        assert_equal_weights(&stock.valid(), &fused.valid());
    }
}

/// Burn keeps the last update of every thread by itself.
fn batch_norm_in_blocks_on_fresh_threads_keeps_the_statistics_of_stock(device: &Device) {
    let initial = Stack::without_chance(device);
    let xs = xs(device);
    let train = |recompute: bool| {
        let model = copy(&initial, || Stack::without_chance(device));
        let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
        for x in &xs[..2] {
            fused.step_ok(RATE, |model| {
                let context = StepContext::current().unwrap();
                let x = model.input.forward(x.clone());
                let way = if recompute { each } else { plain };
                let run = || context.enter(|| way(&model.blocks, x));
                let x = std::thread::scope(|scope| scope.spawn(run).join().unwrap());
                model.output.forward(x).powi_scalar(2).mean()
            });
        }
        fused.valid()
    };
    assert_equal_weights(&train(false), &train(true));
}

on_every_cpu_backend!(
    a_block_that_reads_its_state_sees_it_as_it_was_in_both_runs,
    both_passes_of_exact_clipping_see_a_state_as_it_was,
    state_used_by_two_blocks_is_that_of_stock,
    batch_norm_in_blocks_on_fresh_threads_keeps_the_statistics_of_stock,
);
