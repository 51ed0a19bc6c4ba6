//! The memory of gradients is released, and nothing else takes its place.
//!
//! A process of its own: it counts every allocated byte.

mod accumulation;
mod beside_tensors;
mod blocks;
#[path = "../common/mod.rs"]
mod common;
mod exchange;
mod formats;
mod loaded;
mod loading;
mod loss;
mod ndarray;
mod pytorch_file;
mod quantized;
mod replicas;

use std::sync::Mutex;

use peak_alloc::PeakAlloc;

use crate::common::*;

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

/// One test at a time: they share the counters.
static ALONE: Mutex<()> = Mutex::new(());

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
    Device::flex().autodiff()
}

fn x(width: usize) -> Tensor<2> {
    Tensor::random([4, width], Distribution::Default, &device())
}

/// Fails if a new version of Burn changes the order of the tape.
#[test]
fn gradients_held_at_once_do_not_grow_with_depth() {
    let _alone = ALONE.lock();
    let width = 128;
    let x = x(width);
    let largest_gradient = 4 * 4 * width * width;
    for depth in [3, 24, 96] {
        let model = Mlp::init(depth, width, &device());
        let mut fused = FusedOptimizer::new_ok(model, backburn::optim::SgdConfig::new().init());
        let mut activations = 0;
        let mut step = || {
            let before = BYTES.current_usage();
            fused.step_ok(0.1, |model| {
                let loss = model.loss(x.clone());
                activations = BYTES.current_usage() - before;
                loss
            });
        };
        step();
        let peak = peak(step);
        let gradients = (peak - activations) as f64 / largest_gradient as f64;
        // The nodes of the tape take some 10 KB a layer.
        let nodes = 0.05 * depth as f64;
        println!("{depth} layers: {gradients:.2} gradients");
        assert!(
            gradients < 3.0 + nodes,
            "{depth} layers, with two gradients each: {gradients:.2}"
        );
    }
}

/// Allocated bytes after so many steps, over 1,000 steps.
fn assert_no_growth(loss: impl Fn(&Mlp, Tensor<2>) -> Tensor<1>) {
    let _alone = ALONE.lock();
    let mut fused = FusedOptimizer::new_ok(Mlp::init(3, 4, &device()), AdamConfig::new().init());
    let mut after = |steps: usize| {
        for _ in 0..steps {
            fused.step_ok(1e-3, |model| loss(model, x(4)));
        }
        BYTES.current_usage()
    };
    let start = after(20);
    let end = after(980);
    // Less than two words a step, which no leak of a node or of an entry in a map stays under. The
    // threads of the backend and of the test harness allocate a little now and then.
    assert!(end < start + 16 * 980, "{} bytes more", end - start);
}

#[test]
fn allocated_bytes_do_not_grow_when_every_parameter_is_used() {
    assert_no_growth(|model, x| model.loss(x));
}

#[test]
fn allocated_bytes_do_not_grow_when_parameters_are_read_and_not_used() {
    assert_no_growth(|model, x| {
        for layer in &model.layers {
            // Read, and read into an operation, but not part of the loss.
            let _ = layer.expand.weight.val();
            let _ = layer.contract.forward(layer.expand.forward(x.clone()));
        }
        model.layers[1].expand.forward(x).mean()
    });
}

/// Policies and averages have their state in the optimizer already.
#[test]
fn loading_a_checkpoint_adds_nothing_to_the_optimizer() {
    let _alone = ALONE.lock();
    let grown = |config: FusedConfig| {
        let model = Mlp::init(3, 4, &device());
        let mut fused =
            FusedOptimizer::new_ok(model, AdamConfig::new().init()).with_config_ok(config);
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::at(folder.path().join("run"));
        fused.step_ok(1e-3, |model| model.loss(x(4)));
        checkpoint.save(&fused, &Progress::new(1)).unwrap();
        let mut after = |loads: usize| {
            for _ in 0..loads {
                let _: Progress = checkpoint.load(&mut fused).unwrap();
            }
            BYTES.current_usage()
        };
        let start = after(10);
        after(40) - start
    };
    let kept = FusedConfig::lagged(1.0).with_averaging(Some(WeightAveragingConfig::new()));
    let (plain, kept) = (grown(FusedConfig::new()), grown(kept));
    // A group of parameters takes more.
    assert!(kept < plain + 16 * 40, "{kept} bytes, and {plain} without");
}

/// The most bytes allocated during `train`, over those before.
fn peak(train: impl FnOnce()) -> usize {
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    train();
    BYTES.peak_usage() - before
}

#[test]
fn fused_needs_little_more_than_parameters_state_and_activations() {
    let _alone = ALONE.lock();
    let (depth, width) = (8, 128);
    let x = x(width);

    let mut parameters = 0;
    let stock = peak(|| {
        let mut model = Mlp::init(depth, width, &device());
        parameters = 4 * model.num_params();
        let mut optimizer = AdamConfig::new().init();
        for _ in 0..3 {
            let gradients = model.loss(x.clone()).backward();
            let gradients = GradientsParams::from_grads(gradients, &model);
            model = optimizer.step(1e-3, model, gradients);
        }
    });

    let mut activations = 0;
    let mut fused_peak = 0;
    peak(|| {
        let model = Mlp::init(depth, width, &device());
        let mut fused = FusedOptimizer::new_ok(model, AdamConfig::new().init());
        fused.step_ok(1e-3, |model| model.loss(x.clone()));
        let held = BYTES.current_usage();
        fused_peak = 3 * parameters
            + peak(|| {
                for _ in 0..2 {
                    fused.step_ok(1e-3, |model| {
                        let loss = model.loss(x.clone());
                        activations = BYTES.current_usage() - held;
                        loss
                    });
                }
            });
    });

    let largest_gradient = 4 * 4 * width * width;
    let bound = 3 * parameters + activations + largest_gradient;
    assert!(
        (fused_peak as f64) < 1.06 * bound as f64,
        "{fused_peak} bytes, {bound} expected"
    );
    assert!(
        (fused_peak as f64) < 0.85 * stock as f64,
        "{fused_peak} bytes, {stock} in stock"
    );
}

#[test]
fn average_takes_four_bytes_and_is_updated_in_place() {
    let _alone = ALONE.lock();
    let (depth, width) = (8, 128);
    let x = x(width);
    let parameters = 4 * Mlp::init(depth, width, &device()).num_params();
    let of = |averaging: Option<WeightAveragingConfig>| {
        let model = Mlp::init(depth, width, &device());
        let before = BYTES.current_usage();
        let mut fused = FusedOptimizer::new_ok(model, backburn::optim::AdamConfig::new().init())
            .with_config_ok(FusedConfig::new().with_averaging(averaging));
        fused.step_ok(1e-3, |model| model.loss(x.clone()));
        let at_rest = BYTES.current_usage() - before;
        let peak = peak(|| drop(fused.step_ok(1e-3, |model| model.loss(x.clone()))));
        [at_rest, peak].map(|bytes| bytes as f64 / parameters as f64)
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
    let _alone = ALONE.lock();
    let (depth, width) = (8, 128);
    let x = x(width);
    let model = || Mlp::init(depth, width, &device());
    let parameters = 4 * model().num_params();
    let fused = || FusedOptimizer::new_ok(model(), AdamConfig::new().init());
    let peak_of_step = |mut fused: FusedOptimizer<Mlp>| {
        let mut step = || drop(fused.step_repeatable_ok(1e-3, |model| model.loss(x.clone())));
        step();
        peak(step) as f64 / parameters as f64
    };
    let plain = peak_of_step(fused());
    let exact = fused().with_config_ok(FusedConfig::exact(1e-3));
    let scaled = fused().with_config_ok(FusedConfig::scaling(LossScalingConfig::new()));
    for peak in [peak_of_step(exact), peak_of_step(scaled)] {
        // A gradient that is multiplied is no second one; its largest is 1/16 of the parameters.
        assert!(peak < plain + 0.07, "{peak} P, {plain} P without");
    }
}

#[test]
fn recomputed_blocks_keep_their_inputs_and_release_their_gradients() {
    let _alone = ALONE.lock();
    let (depth, width) = (8, 128);
    let mut parameters = 0;
    let mut peak_of_step = |batch: usize, loss: fn(&Mlp, Tensor<2>) -> Tensor<1>| {
        let x = Tensor::random([batch, width], Distribution::Default, &device());
        let model = Mlp::init(depth, width, &device());
        parameters = 4 * model.num_params();
        let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init());
        let mut step = || drop(fused.step_ok(1e-3, |model| loss(model, x.clone())));
        step();
        peak(step)
    };
    // Where activations rule, those of one layer and the inputs of the others are left.
    let plain = peak_of_step(512, Mlp::loss) as f64;
    let block = peak_of_step(512, Mlp::recomputed_loss) as f64;
    assert!(block < 0.4 * plain, "{block} bytes, {plain} without");
    // Where parameters rule, no more than two gradients of 1/16 of them are there at a time.
    let few = peak_of_step(4, Mlp::recomputed_loss) as f64 / parameters as f64;
    assert!(few < 0.3, "{few} P");
}

#[test]
fn a_single_pass_allocates_nothing_of_the_size_of_the_parameter() {
    use backburn::optim::{AdamConfig, AdamWConfig, LionConfig, SgdConfig};

    fn allocated(optimizer: impl Optimizer) -> usize {
        allocated_in(FloatDType::F32, optimizer)
    }

    fn allocated_in(dtype: FloatDType, optimizer: impl Optimizer) -> usize {
        let device = Device::flex();
        let random = || Tensor::<1>::random([1 << 20], Distribution::Default, &device);
        let tensor = || random().cast(dtype);
        // The first step makes the state.
        let (parameter, state) = optimizer.step(0.1, tensor(), tensor(), None);
        let gradient = tensor();
        let mut stepped = None;
        let peak = peak(|| stepped = Some(optimizer.step(0.1, parameter, gradient, state)));
        drop(stepped);
        peak
    }

    let _alone = ALONE.lock();
    let momentum = Some(MomentumConfig::new());
    for allocated in [
        allocated(AdamConfig::new().build()),
        allocated(AdamWConfig::new().with_amsgrad(true).build()),
        allocated(SgdConfig::new().with_momentum(momentum).build()),
        allocated(LionConfig::new().build()),
        allocated(
            AdamWConfig::new()
                .with_state_format(StateFormat::Bits8)
                .build(),
        ),
        allocated(
            LionConfig::new()
                .with_state_format(StateFormat::Bits4)
                .build(),
        ),
        allocated_in(
            FloatDType::BF16,
            AdamConfig::new()
                .with_state_format(StateFormat::Bits8)
                .with_weight_format(WeightFormat::Split24)
                .build(),
        ),
        allocated_in(
            FloatDType::BF16,
            AdamWConfig::new()
                .with_amsgrad(true)
                .with_weight_format(WeightFormat::Split24)
                .build(),
        ),
    ] {
        // A parameter is 4 MB; threads that start take a little.
        assert!(allocated < 100_000, "{allocated} bytes");
    }
    assert!(allocated(burn::optim::AdamConfig::new().build()) > 4 << 20);
}

/// By an optimizer, by a hook, and in the second run of a block: what the passes had recorded is let go.
#[test]
fn panics_and_errors_in_the_backward_pass_leak_nothing() {
    let _alone = ALONE.lock();
    // What a panic prints is kept by the test harness.
    std::panic::set_hook(Box::new(|_| {}));
    let x = x(64);
    let held_after = |fail: &mut dyn FnMut(&mut FusedOptimizer<Mlp>)| {
        let model = Mlp::init(4, 64, &device());
        let mut fused = FusedOptimizer::new_ok(model, AdamConfig::new().init());
        fused.step_ok(1e-3, |model| model.loss(x.clone()));
        let mut after = |failures: usize| {
            (0..failures).for_each(|_| fail(&mut fused));
            fused.step_ok(1e-3, |model| model.loss(x.clone()));
            fused.step_ok(1e-3, |model| model.loss(x.clone()));
            BYTES.current_usage()
        };
        after(3);
        let before = after(1);
        after(20).saturating_sub(before)
    };
    let caught = |work: &mut dyn FnMut()| {
        let work = std::panic::AssertUnwindSafe(work);
        std::panic::catch_unwind(work).expect_err("it panics");
    };
    let in_second_run = held_after(&mut |fused| {
        caught(&mut || {
            fused.step_ok(1e-3, |model| {
                let runs = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
                type Runs = Constant<std::sync::Arc<std::sync::atomic::AtomicBool>>;
                let once = |model: &Mlp, (x, Constant(runs)): (_, Runs)| {
                    assert!(
                        !runs.swap(true, std::sync::atomic::Ordering::Relaxed),
                        "once"
                    );
                    model.loss(x)
                };
                let input = (x.clone(), Constant(runs));
                backburn::gradient_checkpointing(model, input, once) + model.loss(x.clone())
            });
        });
    });
    let after_it = held_after(&mut |fused| {
        caught(&mut || {
            fused.step_with_backward_ok(1e-3, |model| {
                let gradients = model.loss(x.clone()).backward();
                assert!(x.dims()[0] == 0, "after the backward pass");
                ((), GradientsParams::from_grads(gradients, model))
            });
        });
    });
    let not_tracked = held_after(&mut |fused| {
        let result = fused.step(1e-3, |model| model.loss(x.clone()).detach());
        assert!(result.is_err());
    });
    drop(std::panic::take_hook());
    let leaked = [in_second_run, after_it, not_tracked];
    assert!(
        leaked.iter().all(|bytes| *bytes < 4096),
        "{leaked:?} bytes after 20 failures"
    );
}
