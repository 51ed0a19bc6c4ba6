//! On a device that shows its pools and no allocations, and whose host can hold what waits.

use backburn::optim::AdamWConfig;
use backburn::{Fidelity, FusedError, Measured, Plan, PlanError, Planner, Technique};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, DeviceKind, Tensor};

use crate::models::*;
use crate::{ENOUGH, alone};

fn device() -> Device {
    Device::wgpu(Default::default()).autodiff()
}

fn measured(order: &[Technique]) -> Measured<AdamWConfig> {
    let planner = Planner::new(|| Mlp::init(&device()), AdamWConfig::new());
    let planner = planner.with_batch(Mlp::BATCH).with_order(order);
    planner.measure(Mlp::loss, ENOUGH).unwrap()
}

/// Bytes in use after a step, and those reserved.
fn trained(plan: &Plan<AdamWConfig>) -> (usize, usize) {
    let mut fused = plan.fuse(|| Mlp::init(&device()));
    let parts = plan.accumulation as f32;
    for _ in 0..2 {
        for _ in 1..plan.accumulation {
            fused.accumulate(|model| model.loss(plan.batch) / parts);
        }
        let loss = fused.step(1e-3, |model| model.loss(plan.batch) / parts);
        assert!(loss.into_scalar::<f32>().is_finite());
    }
    let usage = device().inner().memory_pool_usage().unwrap();
    (usage.bytes_in_use as usize, usage.bytes_reserved as usize)
}

#[test]
fn a_plan_for_a_device_errs_on_the_safe_side_says_so_and_learns() {
    let _alone = alone();
    let mut measured = measured(Technique::LEAST_COST);
    let plan = measured.choose(ENOUGH).unwrap();
    assert!(plan.ladder.estimated);
    assert!(plan.to_string().contains("with a margin"), "{plan}");
    let (in_use, reserved) = trained(&plan);
    assert!(in_use <= plan.device_bytes, "{in_use} in use\n{plan}");
    measured.have_seen(&plan, reserved);
    let again = measured.choose(ENOUGH).unwrap();
    let ratio = again.device_bytes as f64 / plan.device_bytes as f64;
    let seen = reserved as f64 / plan.device_bytes as f64;
    assert!(
        (ratio > 1.0) == (seen > 1.0),
        "{seen:.2} seen, {ratio:.2} reckoned with"
    );
}

#[test]
fn a_device_that_is_not_there_is_refused_by_its_number() {
    let _alone = alone();
    let absent = Device::wgpu(DeviceKind::DiscreteGpu(99));
    // Named by its maker, and by the planner.
    let made_there = Planner::new(|| Mlp::init(&absent.clone().autodiff()), AdamWConfig::new());
    let refused = made_there.measure(Mlp::loss, ENOUGH).map(drop);
    let is_refused = |refused| {
        matches!(
            refused,
            Err(PlanError::Fused(FusedError::DeviceNotThere { .. }))
        )
    };
    assert!(is_refused(refused));
    let planner = Planner::new(|| Mlp::init(&device()), AdamWConfig::new()).with_devices(&[absent]);
    assert!(is_refused(planner.measure(Mlp::loss, ENOUGH).map(drop)));
}

#[test]
fn what_the_device_has_is_the_users_to_say() {
    let _alone = alone();
    let measured = measured(&[]);
    let refused = measured.choose(backburn::Budget::Machine).map(drop);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("Budget::Bytes"), "{error}");
}

#[test]
fn what_waits_on_the_host_leaves_the_device_and_trains() {
    let _alone = alone();
    let on_device = measured(&[Technique::Blocks]).ladder(1).rungs.pop();
    let weights = 4 * Mlp::init(&device()).num_params();
    let budget = on_device.unwrap().device_bytes - weights;
    for waits in [
        Technique::HostStates,
        Technique::HostUpdates,
        Technique::HostWeights,
    ] {
        let planner = Planner::new(|| Mlp::init(&device()), AdamWConfig::new());
        let planner = planner.with_order(&[Technique::Blocks, waits]);
        let measured = planner.with_batch(Mlp::BATCH).measure(Mlp::loss, budget);
        let plan = measured.unwrap().choose(budget).unwrap();
        let taken = &plan.ladder.rungs[plan.ladder.taken.unwrap()];
        assert!(taken.name.contains("on the host"), "{plan}");
        assert!(plan.host_bytes > 0, "{plan}");
        let (in_use, _) = trained(&plan);
        assert!(in_use <= plan.device_bytes, "{in_use} in use\n{plan}");
    }
}

/// The same software device under two names, each with pools of its own.
#[test]
fn ranks_are_a_rung_and_each_device_holds_less() {
    let _alone = alone();
    let devices = [DeviceKind::DefaultDevice, DeviceKind::Cpu].map(Device::wgpu);
    let planner = Planner::new(|| Mlp::init(&device()), AdamWConfig::new());
    let planner = planner
        .with_batch(Mlp::BATCH)
        .with_devices(&devices)
        .with_order(&[Technique::Ranks]);
    let measured = planner.measure(Mlp::loss, ENOUGH).unwrap();
    let rungs = measured.ladder(1).rungs;
    let names: Vec<_> = rungs.iter().map(|rung| rung.name.as_str()).collect();
    assert_eq!(names, ["fused", "2 ranks"]);
    assert_eq!(rungs[1].fidelity, Fidelity::Rounding);
    assert!(rungs[1].device_bytes < rungs[0].device_bytes, "{rungs:?}");
    let plan = measured.choose(rungs[1].device_bytes).unwrap();
    assert_eq!((plan.ranks, plan.batch), (2, Mlp::BATCH / 2), "{plan}");
    let mut fused = plan.replicas(|| Mlp::init(&device()), &devices);
    for _ in 0..2 {
        fused.step(1e-3, [plan.batch; 2], |model: &Mlp, items| {
            model.loss(items) / 2.0
        });
    }
    for device in &devices {
        let usage = device.memory_pool_usage().unwrap();
        let in_use = usage.bytes_in_use as usize;
        assert!(in_use <= plan.device_bytes, "{in_use} in use\n{plan}");
    }
}

/// Burn's own Adam makes copies, beside the states that are on the way.
#[test]
fn an_update_beside_states_on_the_way_is_counted() {
    let _alone = alone();
    let init = || -> Vec<Linear> {
        let layer = |_| LinearConfig::new(512, 512).with_bias(false).init(&device());
        (0..8).map(layer).collect()
    };
    let loss = |model: &Vec<Linear>, items: usize| {
        let x = Tensor::<2>::ones([items, 512], &device());
        model.iter().fold(x, |x, layer| layer.forward(x)).mean()
    };
    let planner = Planner::new(init, AdamConfig::new().init()).with_order(&[Technique::HostStates]);
    let measured = planner.measure(loss, ENOUGH).unwrap();
    let rungs = measured.ladder(1).rungs;
    let plan = measured.choose(rungs[1].device_bytes).unwrap();
    assert!(plan.host_bytes > 0, "{plan}");
    let train = || {
        let mut fused = plan.fuse(init);
        for _ in 0..8 {
            let loss = fused.step(1e-3, |model| loss(model, plan.batch));
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
}
