//! Training on several devices equals Burn's own multi-device training. These tests are apart from the other promises,
//! because each step seeds the random generators of the process.

#[path = "../common/mod.rs"]
mod common;
mod devices;
mod faults;
mod fidelity;
mod hostile;
mod muon;
mod own_backward;
mod random;
mod records;
mod rows;
mod types;

use std::sync::{LazyLock, Mutex, MutexGuard};

use burn::optim::MultiGradientsParams;

use crate::common::*;

const RATE: f64 = 0.05;
const SHARDINGS: [Sharding; 2] = [Sharding::State, Sharding::Full];

type Batches = Vec<Tensor<2, Int>>;

/// A model with a tied embedding, layers in blocks, a layer that only some batches use, and a shared weight.
#[derive(Module, Debug)]
struct Network {
    embedding: Embedding,
    layers: Vec<Linear>,
    /// Used for batches of an even number of rows.
    sometimes: Linear,
    scale: Param<Tensor<1>>,
}

impl Network {
    fn init(device: &Device) -> Self {
        Self::of_width(6, device)
    }

    fn of_width(width: usize, device: &Device) -> Self {
        let layer = |_| LinearConfig::new(width, width).init(device);
        Self {
            embedding: EmbeddingConfig::new(9, width).init(device),
            layers: (0..4).map(layer).collect(),
            sometimes: LinearConfig::new(width, width).init(device),
            scale: Param::from_tensor(Tensor::ones([width], device)),
        }
    }

    fn loss(&self, tokens: Tensor<2, Int>) -> Tensor<1> {
        self.loss_of(tokens, run)
    }

    fn loss_in_blocks(&self, tokens: Tensor<2, Int>) -> Tensor<1> {
        self.loss_of(tokens, |layer, x| gradient_checkpointing(layer, x, run))
    }

    /// Returns the loss, with layers that are called by `block`.
    fn loss_of(
        &self,
        tokens: Tensor<2, Int>,
        block: impl Fn(&Linear, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<1> {
        let is_even = tokens.dims()[0].is_multiple_of(2);
        let x = self.embedding.forward(tokens);
        let x = self.layers.iter().fold(x, |x, layer| block(layer, x));
        let x = match is_even {
            true => self.sometimes.forward(x),
            false => x,
        };
        let x = x * self.scale.val().unsqueeze();
        let logits = x.matmul(self.embedding.weight.val().transpose().unsqueeze());
        logits.powi_scalar(2).mean()
    }
}

fn run(layer: &Linear, x: Tensor<3>) -> Tensor<3> {
    layer.forward(x).tanh()
}

#[global_allocator]
static BYTES: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

/// Runs one test at a time, because the tests share the generators of the process, and the ranks share two cores.
fn alone() -> MutexGuard<'static, ()> {
    // Threads of a pool inherit the name of the thread that starts the pool, and a test waits for the end of the ranks.
    static POOLS: std::sync::Once = std::sync::Once::new();
    POOLS.call_once(|| {
        rayon::broadcast(|_| ());
        let x = Tensor::<2>::ones([256, 256], &cpus()[1].clone().inner());
        drop(x.clone().matmul(x));
    });
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The start of most tests: [`alone`], a device, and a network on it.
fn begin() -> (MutexGuard<'static, ()>, &'static Device, Network) {
    static DEVICE: LazyLock<Device> = LazyLock::new(|| Device::flex().autodiff());
    (alone(), &DEVICE, Network::init(&DEVICE))
}

fn replicas(initial: &Network, devices: &[Device], config: FusedConfig) -> FusedReplicas<Network> {
    let model = copy(initial, || Network::init(&devices[0]));
    FusedReplicas::new(model, adamw(), devices.to_vec())
        .unwrap()
        .with_config(config)
        .unwrap()
}

fn flex(ranks: usize) -> Vec<Device> {
    vec![Device::flex().autodiff(); ranks]
}

fn tokens(device: &Device, rows: &[usize]) -> Batches {
    let uniform = Distribution::Uniform(0.0, 9.0);
    let batch = |rows: &usize| Tensor::<2>::random([*rows, 3], uniform, device).int();
    rows.iter().map(batch).collect()
}

/// Panics unless all ranks compute the same loss: they have the same weights.
#[track_caller]
fn assert_ranks_agree(fused: &mut FusedReplicas<Network>) {
    let same = tokens(&flex(1)[0], &[2]).remove(0);
    let losses = fused
        .accumulate(vec![same; fused.devices().len()], Network::loss)
        .unwrap();
    let losses: Vec<_> = losses.into_iter().map(Tensor::into_data).collect();
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
    fused.drop_accumulated();
}

/// The place where stock Burn sums the gradients of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stock {
    Main,
    Sharded,
}

/// Runs one stock step on several devices. With a type, a copy of the model computes in it, as in mixed precision.
fn stock_step(
    dtype: Option<FloatDType>,
    model: Network,
    optimizer: &mut ModuleOptimizer,
    devices: &[Device],
    batches: Batches,
    stock: Stock,
) -> Network {
    let ranks = devices.iter().zip(batches);
    let gradients = ranks.map(|(device, batch)| {
        let replica = model.clone().fork(device);
        let replica = match dtype {
            Some(dtype) => backburn::cast(replica, dtype).unwrap(),
            None => replica,
        };
        let gradients = replica.loss(batch).backward();
        let gradients = GradientsParams::from_grads(gradients, &replica);
        (in_types_of(&model, gradients), device.clone())
    });
    match stock {
        Stock::Sharded => {
            let mut grads: Vec<_> = gradients.collect();
            let silent = devices[grads.len()..].iter();
            grads.extend(silent.map(|device| (GradientsParams::new(), device.clone())));
            optimizer.step_multi(RATE, model, MultiGradientsParams { grads })
        }
        Stock::Main => {
            let mut sum = GradientsAccumulator::new();
            for (gradients, _) in gradients {
                sum.accumulate(&model, gradients.to_device(&devices[0], &model));
            }
            optimizer.step(RATE, model, sum.grads())
        }
    }
}

fn train_stock(mut model: Network, devices: &[Device], steps: &[Batches], stock: Stock) -> Network {
    let mut optimizer = adamw();
    for batches in steps {
        let batches = batches.clone();
        model = stock_step(None, model, &mut optimizer, devices, batches, stock);
    }
    model
}

fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().init()
}
