//! Fused training releases the memory of gradients, and recordings report it.
//!
//! Each test runs in its own process, because it counts every allocated byte.

mod accumulation;
mod blocks;
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "wgpu")]
mod device;
mod exchange;
mod files;
mod formats;
mod growth;
mod loss;
mod offload;
mod overhead;
mod pytorch_file;
mod quantized;
mod recorder;
mod replicas;

use backburn::memory::RecordingAllocator;
use peak_alloc::PeakAlloc;

use crate::common::*;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

#[derive(Module, Debug)]
struct Residual {
    expand: Linear,
    contract: Linear,
}

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Residual>,
}

impl Mlp {
    fn init(depth: usize, width: usize, device: &Device) -> Self {
        let layer = || Residual {
            expand: LinearConfig::new(width, 4 * width).init(device),
            contract: LinearConfig::new(4 * width, width).init(device),
        };
        Self {
            layers: (0..depth).map(|_| layer()).collect(),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.layers.iter().fold(x, |x, layer| layer.forward(x));
        x.powi_scalar(2).mean()
    }

    fn recomputed_loss(&self, x: Tensor<2>) -> Tensor<1> {
        let forward = |layer: &Residual, x| layer.forward(x);
        let layers = self.layers.iter();
        let x = layers.fold(x, |x, layer| gradient_checkpointing(layer, x, forward));
        x.powi_scalar(2).mean()
    }
}

impl Residual {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = Gelu::new().forward(self.expand.forward(x.clone()));
        x + self.contract.forward(hidden)
    }
}

fn device() -> Device {
    flex()
}

/// The processor under another name, so that offloaded tensors are on another backend.
fn other() -> Device {
    cpus()[1].clone()
}

fn x(width: usize) -> Tensor<2> {
    Tensor::random([4, width], Distribution::Default, &device())
}

/// The most bytes allocated during `train`, over those before.
fn peak(train: impl FnOnce()) -> usize {
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    train();
    BYTES.peak_usage() - before
}

const DEPTH: usize = 8;
const WIDTH: usize = 128;

fn mlp() -> Mlp {
    Mlp::init(DEPTH, WIDTH, &device())
}

/// Bytes in multiples of those of the parameters (P) of [`mlp`]. A weight, which is the largest gradient, is 1/16.
fn multiple(bytes: usize) -> f64 {
    bytes as f64 / (4 * mlp().num_params()) as f64
}

/// Fails if a new version of Burn changes the order of the tape.
#[test]
fn gradients_held_at_once_do_not_grow_with_depth() {
    alone!();
    let x = x(WIDTH);
    let largest_gradient = 4 * 4 * WIDTH * WIDTH;
    for depth in [3, 24, 96] {
        let model = Mlp::init(depth, WIDTH, &device());
        let mut fused =
            FusedOptimizer::new(model, backburn::optim::SgdConfig::new().init()).unwrap();
        let mut activations = 0;
        let mut step = || {
            let before = BYTES.current_usage();
            fused
                .step(0.1, |model| {
                    let loss = model.loss(x.clone());
                    activations = BYTES.current_usage() - before;
                    loss
                })
                .unwrap();
        };
        step();
        let peak = peak(step);
        let gradients = (peak - activations) as f64 / largest_gradient as f64;
        // The nodes of the tape take some 10 KB a layer.
        let nodes = 0.05 * depth as f64;
        assert!(
            gradients < 3.0 + nodes,
            "{depth} layers, with two gradients each: {gradients:.2}"
        );
    }
}

/// On `ndarray`, `expand` copies.
#[test]
fn fused_holds_parameters_states_activations_and_one_gradient() {
    alone!();
    for (device, bound) in [(device(), 3.35), (other(), 3.5)] {
        let init = || Mlp::init(DEPTH, WIDTH, &device);
        let x = Tensor::random([4, WIDTH], Distribution::Default, &device);
        let loss = |model: &Mlp, _| model.loss(x.clone());
        let adam = || AdamConfig::new().init();
        let stock = peak(|| drop(train_stock(init(), &mut adam(), 3, 1e-3, loss)));
        let before = BYTES.current_usage();
        let mut at_rest = 0;
        let fused = peak(|| {
            let mut fused = FusedOptimizer::new(init(), adam()).unwrap();
            train_fused(&mut fused, 3, 1e-3, loss);
            at_rest = BYTES.current_usage() - before;
        });
        let [stock, fused, at_rest] = [stock, fused, at_rest].map(multiple);
        println!("{device:?}: {at_rest:.3} P at rest, {fused:.3} P, {stock:.3} P in stock");
        assert!(
            at_rest < 3.1 && fused < bound,
            "{at_rest} P, then {fused} P"
        );
        assert!(fused < 0.85 * stock, "{fused} P, {stock} P in stock");
    }
}

#[test]
fn average_takes_four_bytes_and_is_updated_in_place() {
    alone!();
    let x = x(WIDTH);
    let of = |averaging: Option<WeightAveragingConfig>| {
        let model = mlp();
        let before = BYTES.current_usage();
        let mut fused = FusedOptimizer::new(model, backburn::optim::AdamConfig::new().init())
            .unwrap()
            .with_config(FusedConfig::new().with_averaging(averaging))
            .unwrap();
        fused.step(1e-3, |model| model.loss(x.clone())).unwrap();
        let at_rest = BYTES.current_usage() - before;
        let peak = peak(|| drop(fused.step(1e-3, |model| model.loss(x.clone())).unwrap()));
        [at_rest, peak].map(multiple)
    };
    // The first one starts the threads of the backend.
    let [[_, _], [without, beside]] = [of(None), of(None)];
    let [at_rest, peak] = of(Some(WeightAveragingConfig::new().with_decay(Some(0.999))));
    let taken = at_rest - without;
    assert!((taken - 1.0).abs() < 0.02, "{taken} P");
    assert!(peak < beside + 0.02, "{peak} P, {beside} without");
}

#[test]
fn measuring_passes_release_their_gradients() {
    alone!();
    let x = x(WIDTH);
    let peak_of_step = |config: FusedConfig| {
        let fused = FusedOptimizer::new(mlp(), AdamConfig::new().init()).unwrap();
        let mut fused = fused.with_config(config).unwrap();
        let mut step = || {
            drop(
                fused
                    .step_repeatable(1e-3, |model| model.loss(x.clone()))
                    .unwrap(),
            )
        };
        step();
        multiple(peak(step))
    };
    let plain = peak_of_step(FusedConfig::new());
    let scaling = FusedConfig::scaling(LossScalingConfig::new());
    for config in [FusedConfig::exact(1e-3), scaling] {
        // A gradient that is multiplied is no second one.
        let peak = peak_of_step(config);
        assert!(peak < plain + 0.07, "{peak} P, {plain} P without");
    }
}

#[test]
fn recomputed_blocks_keep_inputs_and_release_gradients() {
    alone!();
    let peak_of_step = |batch: usize, loss: fn(&Mlp, Tensor<2>) -> Tensor<1>| {
        let x = Tensor::random([batch, WIDTH], Distribution::Default, &device());
        let mut fused = FusedOptimizer::new(mlp(), SgdConfig::new().init()).unwrap();
        let mut step = || drop(fused.step(1e-3, |model| loss(model, x.clone())).unwrap());
        step();
        multiple(peak(step))
    };
    // Where activations rule, those of one layer and the inputs of the others are left.
    let plain = peak_of_step(512, Mlp::loss);
    let block = peak_of_step(512, Mlp::recomputed_loss);
    assert!(block < 0.4 * plain, "{block} P, {plain} P without");
    // If parameters take most of the memory, at most two gradients exist at a time.
    let few = peak_of_step(4, Mlp::recomputed_loss);
    assert!(few < 0.3, "{few} P");
}

/// Bytes that the second step of a parameter of 4 MB in f32 allocates. The first makes the state.
fn allocated(dtype: FloatDType, optimizer: impl Optimizer) -> usize {
    let random = || Tensor::<1>::random([1 << 20], Distribution::Default, &Device::flex());
    let tensor = || random().cast(dtype);
    let (parameter, state) = optimizer.step(0.1, tensor(), tensor(), None);
    let gradient = tensor();
    let mut stepped = None;
    peak(|| stepped = Some(optimizer.step(0.1, parameter, gradient, state)))
}

#[test]
fn single_pass_allocates_nothing_of_parameter_size() {
    use backburn::optim::{AdamConfig, AdamWConfig, LionConfig, SgdConfig};

    alone!();
    let (adam, adamw, lion) = (AdamConfig::new(), AdamWConfig::new(), LionConfig::new());
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let amsgrad = adamw.clone().with_amsgrad(true);
    let (bits8, bits4) = (StateFormat::Bits8, StateFormat::Bits4);
    let adam24 = adam.clone().with_weight_format(WeightFormat::Split24);
    let amsgrad24 = amsgrad.clone().with_weight_format(WeightFormat::Split24);
    for allocated in [
        allocated(FloatDType::F32, adam.build()),
        allocated(FloatDType::F32, amsgrad.build()),
        allocated(FloatDType::F32, sgd.build()),
        allocated(FloatDType::F32, lion.build()),
        allocated(FloatDType::F32, adamw.with_state_format(bits8).build()),
        allocated(FloatDType::F32, lion.with_state_format(bits4).build()),
        allocated(FloatDType::BF16, adam24.with_state_format(bits8).build()),
        allocated(FloatDType::BF16, amsgrad24.build()),
    ] {
        // Starting threads allocate a little.
        assert!(allocated < 100_000, "{allocated} bytes");
    }
    let of_burn = burn::optim::AdamConfig::new().build();
    assert!(allocated(FloatDType::F32, of_burn) > 4 << 20);
}
