//! Plans for a device that reports its pools but no allocations, with a host for offload.

use backburn::optim::AdamWConfig;
use burn::tensor::DeviceKind;

use crate::models::*;
use crate::{ENOUGH, alone};

use crate::common::*;

fn device() -> Device {
    Device::wgpu(Default::default()).autodiff()
}

fn plan(order: &[Technique], budget: impl Into<Budget>) -> Result<Plan<AdamWConfig>, PlanError> {
    let planner = Planner::new(|| Mlp::init(&device()), AdamWConfig::new());
    let planner = planner.with_batch(Mlp::BATCH).with_order(order);
    planner.plan(Mlp::loss, budget)
}

fn trained(plan: &Plan<AdamWConfig>) -> usize {
    let mut fused = plan.fuse(|| Mlp::init(&device())).unwrap();
    let parts = plan.accumulation as f32;
    for _ in 0..2 {
        for _ in 1..plan.accumulation {
            fused
                .accumulate(|model| model.loss(plan.batch) / parts)
                .unwrap();
        }
        let loss = fused
            .step(1e-3, |model| model.loss(plan.batch) / parts)
            .unwrap();
        assert!(loss.into_scalar::<f32>().is_finite());
    }
    let usage = device().inner().memory_pool_usage().unwrap();
    usage.bytes_in_use as usize
}

#[test]
fn plan_for_device_is_not_exceeded() {
    alone!();
    let plan = plan(Technique::LEAST_COST, ENOUGH).unwrap();
    let in_use = trained(&plan);
    assert!(in_use <= plan.device_bytes, "{in_use} in use\n{plan}");
}

#[test]
fn missing_device_is_refused_by_its_number() {
    alone!();
    let absent = Device::wgpu(DeviceKind::DiscreteGpu(99));
    // The device is set by the model, and by the planner.
    let made_there = Planner::new(|| Mlp::init(&absent.clone().autodiff()), AdamWConfig::new());
    let refused = made_there.plan(Mlp::loss, ENOUGH).map(drop);
    let is_refused = |refused| {
        matches!(
            refused,
            Err(PlanError::Fused(FusedError::DeviceUnavailable { .. }))
        )
    };
    assert!(is_refused(refused));
    let planner = Planner::new(|| Mlp::init(&device()), AdamWConfig::new()).with_device(&absent);
    assert!(is_refused(planner.plan(Mlp::loss, ENOUGH).map(drop)));
}

#[test]
fn budget_of_machine_without_known_memory_is_refused() {
    alone!();
    let refused = plan(&[], Budget::Machine).map(drop);
    let error = refused.unwrap_err().to_string();
    assert_says(&error, "Budget::Bytes");
}

#[test]
fn offloaded_candidate_leaves_device_and_trains() {
    alone!();
    let on_device = plan(&[Technique::Blocks], ENOUGH).unwrap().candidates.pop();
    let weights = 4 * Mlp::init(&device()).num_params();
    let budget = on_device.unwrap().device_bytes - weights;
    for waits in [
        Technique::HostStates,
        Technique::HostUpdates,
        Technique::HostWeights,
    ] {
        let plan = plan(&[Technique::Blocks, waits], budget).unwrap();
        let taken = &plan.candidates[plan.taken];
        assert!(taken.name.contains("on the host"), "{plan}");
        assert!(plan.host_bytes > 0, "{plan}");
        let in_use = trained(&plan);
        assert!(in_use <= plan.device_bytes, "{in_use} in use\n{plan}");
    }
}

/// Offloaded weights need blocks for adapters. They are left out with this reason.
#[test]
fn adapters_outside_of_blocks_are_not_offloaded() {
    alone!();
    let init = || -> Vec<Linear> {
        let layer = |_| LinearConfig::new(512, 512).init(&device());
        let layers: Vec<Linear> = (0..2).map(layer).collect();
        layers.apply_lora(Lora::new(4, 8.0))
    };
    let loss = |model: &Vec<Linear>, items: usize| {
        let x = Tensor::<2>::ones([items, 512], &device());
        model.iter().fold(x, |x, layer| layer.forward(x)).mean()
    };
    let planner = Planner::new(init, AdamWConfig::new());
    let planner = planner.with_order(Technique::SAME_PRECISION);
    for budget in [3_299_839, 2_200_000] {
        let error = planner.plan(loss, budget).unwrap_err();
        assert_says(&error, "Weights on the host are not possible");
        let PlanError::NothingFits { least, .. } = error else {
            panic!("{error}");
        };
        // More than the smallest number that is not refused by its type alone.
        assert!(least > budget + 1, "{least}");
    }
    // The device has no room to create the model.
    let error = planner.plan(loss, 1_100_000).unwrap_err();
    let of_model = 4 * 2 * 513 * 512;
    assert!(matches!(error, PlanError::NothingFits { least, .. } if least >= of_model));
}

/// Burn's own Adam makes copies, in addition to the states in flight.
#[test]
fn update_next_to_states_in_flight_is_counted() {
    alone!();
    let init = || -> Vec<Linear> {
        let layer = |_| LinearConfig::new(512, 512).with_bias(false).init(&device());
        (0..8).map(layer).collect()
    };
    let loss = |model: &Vec<Linear>, items: usize| {
        let x = Tensor::<2>::ones([items, 512], &device());
        model.iter().fold(x, |x, layer| layer.forward(x)).mean()
    };
    let planner = Planner::new(init, AdamConfig::new().init()).with_order(&[Technique::HostStates]);
    let whole = planner.plan(loss, ENOUGH).unwrap();
    let plan = planner.plan(loss, whole.device_bytes - 1).unwrap();
    assert!(plan.host_bytes > 0, "{plan}");
    let train = || {
        let mut fused = plan.fuse(init).unwrap();
        for _ in 0..8 {
            let loss = fused.step(1e-3, |model| loss(model, plan.batch)).unwrap();
            assert!(loss.into_scalar::<f32>().is_finite());
        }
    };
    let most = std::thread::scope(|scope| {
        let training = scope.spawn(train);
        let (device, mut most) = (device().inner(), 0);
        while !training.is_finished() {
            most = most.max(device.memory_pool_usage().unwrap().bytes_in_use as usize);
        }
        training.join().unwrap();
        most
    });
    assert!(most <= plan.device_bytes, "{most} in use\n{plan}");
    let config = plan.config.clone();
    let estimate = MemoryEstimate::new_with_config(&init(), &AdamConfig::new().init(), &config);
    // The activations of one item are in addition.
    let most = most - 128_000;
    assert!(most <= estimate.fused, "{most} in use\n{estimate}");
}
