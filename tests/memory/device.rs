//! The effect of gradient checkpointing and formats on the memory of a device, from what all its pools hold.

use backburn::memory::{MemoryRecorder, MemoryTimeline};
use backburn::optim::AdamWConfig;
use burn::tensor::DeviceKind;

use crate::alone;
use crate::common::*;

const WIDTH: usize = 128;
const DEPTH: usize = 6;
/// Bytes of the input of a block.
const INPUT: usize = 4 * 1024 * WIDTH;

fn in_use(device: &Device) -> usize {
    let usage = device.memory_pool_usage().expect("the device has pools");
    usage.bytes_in_use as usize
}

/// Trains a stack of recomputed layers for two steps, the second one recorded, which waits for inputs that leave. Returns the
/// bytes in use at the end of its forward pass, above those before it, and the recording.
fn train(config: GradientCheckpointingConfig) -> (usize, MemoryTimeline) {
    let device = Device::wgpu(Default::default()).autodiff();
    let mut fused = FusedOptimizer::new(linears(DEPTH, WIDTH, &device), SgdConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::new().with_gradient_checkpointing(config))
        .unwrap();
    let x = Tensor::<2>::random([1024, WIDTH], Distribution::Default, &device);
    let mut step = || {
        let before = in_use(&device);
        let (_, after) = fused
            .step(1e-3, |model| {
                let run = |linear: &Linear, x: Tensor<2>| linear.forward(x).tanh().tanh();
                let blocks = model.iter();
                let x = blocks.fold(x.clone(), |x, linear| {
                    gradient_checkpointing(linear, x, run)
                });
                (x.mean(), in_use(&device))
            })
            .unwrap();
        after.saturating_sub(before)
    };
    step();
    let recorder = MemoryRecorder::start_on(&device).unwrap();
    let held = step();
    (held, recorder.finish().unwrap())
}

#[test]
fn offloaded_inputs_leave_device() {
    alone!();
    let offloading = GradientCheckpointingConfig::new().with_offload_inputs(true);
    let (on_device, _) = train(GradientCheckpointingConfig::new());
    let (on_host, _) = train(offloading);
    // The input of the first block is the data, which the test holds.
    let moved = (DEPTH - 1) * INPUT;
    assert!(on_device >= moved, "{on_device} bytes on the device");
    assert!(
        on_host + moved <= on_device + INPUT / 2,
        "{on_host} bytes with the inputs of {moved} on the host, {on_device} without"
    );
}

/// Bytes that a weight and the states of AdamW take on the device after a step, in multiples of the weight's.
fn at_rest(states: StateFormat) -> f64 {
    const WIDTH: usize = 1024;
    let device = Device::wgpu(Default::default()).autodiff();
    let before = in_use(&device);
    let layer = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
    let optimizer = AdamWConfig::new().with_state_format(states).init();
    let mut fused = FusedOptimizer::<Linear>::new(layer.init(&device), optimizer).unwrap();
    for _ in 0..2 {
        let x = Tensor::<2>::ones([2, WIDTH], &device);
        fused.step(1e-3, |model| model.forward(x).mean()).unwrap();
        device.sync().unwrap();
    }
    let parameter = (4 * WIDTH * WIDTH) as f64;
    (in_use(&device) - before) as f64 / parameter
}

#[test]
fn states_take_bytes_of_their_format_on_device() {
    alone!();
    let full = at_rest(StateFormat::Full);
    let bits8 = at_rest(StateFormat::Bits8);
    let bits4 = at_rest(StateFormat::Bits4);
    println!("{full} {bits8} {bits4}");
    // Codes, and a scale in f32 for every 64.
    for (found, expected) in [(full, 3.0), (bits8, 1.53125), (bits4, 1.28125)] {
        assert!(
            (expected..expected + 0.05).contains(&found),
            "{found} P for {expected}"
        );
    }
}

#[test]
fn device_holds_no_weights_that_another_owns() {
    const WIDTH: usize = 512;
    alone!();
    let kinds = [DeviceKind::DefaultDevice, DeviceKind::Cpu];
    let devices = kinds.map(|kind| Device::wgpu(kind).autodiff());
    let before = devices.each_ref().map(in_use);
    // In multiples of the bytes of all weights.
    let held = || {
        devices.iter().zip(before).map(|(device, before)| {
            device.sync().unwrap();
            in_use(device).saturating_sub(before) as f64 / (8 * 4 * WIDTH * WIDTH) as f64
        })
    };
    let layer = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
    let model: Vec<Linear> = (0..8).map(|_| layer.init(&devices[0])).collect();
    let optimizer = AdamWConfig::new().init();
    let mut fused = FusedReplicas::new(model, optimizer, devices.to_vec())
        .unwrap()
        .with_config(FusedConfig::sharded(Sharding::Full).with_ownership(Ownership::BySize))
        .unwrap();
    for (rank, held) in held().enumerate() {
        assert!((0.5..0.55).contains(&held), "rank {rank} holds {held} P");
    }
    let batch = |device: &Device| Tensor::<2>::ones([2, WIDTH], device);
    fused
        .step(1e-3, devices.iter().map(batch), |model: &Vec<Linear>, x| {
            loss_of_layers(model, true, x)
        })
        .unwrap();
    // Weights and two states.
    for (rank, held) in held().enumerate() {
        assert!((1.5..1.55).contains(&held), "rank {rank} holds {held} P");
    }
}
