//! Policies treat the gradients of recomputed blocks as those of plain ones.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::*;
use crate::common::*;

fn policies_of_recomputed_blocks_equal_plain(device: &Device) {
    type Way = fn(&[Block], Tensor<2>) -> Tensor<2>;
    let initial = Stack::init(device);
    let xs = xs(device);
    let mut overflows = xs.clone();
    overflows[2] = xs[2].clone().slice_fill([0..5, 0..1], f32::INFINITY);
    let copied = || copy(&initial, || Stack::init(device));
    let fuse = || FusedOptimizer::new_ok(copied(), AdamWConfig::new().init());
    let pairs = |mut fused: FusedOptimizer<Stack>, way: Way| {
        for pair in xs.chunks_exact(2) {
            fused.accumulate_ok(|model| model.loss(pair[0].clone(), way));
            fused.step_repeatable_ok(RATE, |model| model.loss(pair[1].clone(), way));
        }
        assert!(fused.last_step().clipping.unwrap() < 1.0);
        fused.valid()
    };
    let exact = |way: Way| pairs(fuse().with_config_ok(FusedConfig::exact(0.05)), way);
    let in_state_lagged = |way: Way| {
        let optimizer = optim::AdamWConfig::new().build();
        let fused = FusedOptimizer::accumulating_in_state_ok(copied(), optimizer);
        pairs(fused.with_config_ok(FusedConfig::lagged(0.05)), way)
    };
    let scaled = |way: Way| {
        let scaling = LossScalingConfig::new().with_initial_scale(1024.0);
        let mut fused = fuse().with_config_ok(FusedConfig::scaling(scaling));
        for (step, x) in overflows.iter().enumerate() {
            fused.step_repeatable_ok(RATE, |model| model.loss(x.clone(), way));
            assert_eq!(fused.last_step().overflowed, step == 2);
        }
        fused.valid()
    };
    let policies: [(&str, &dyn Fn(Way) -> Stack); 3] = [
        ("accumulation and exact clipping", &exact),
        (
            "accumulation in the state and lagged clipping",
            &in_state_lagged,
        ),
        ("loss scaling", &scaled),
    ];
    for (name, train) in policies {
        println!("{name}");
        let plain = train(plain);
        for way in [each as Way, nested] {
            assert_equal_weights(&plain, &train(way));
        }
    }
}

/// The gradient of a parameter in a block: the step ends there.
fn an_anomaly_in_a_recomputed_block_stops_the_step(device: &Device) {
    let initial = Stack::init(device);
    let before = copy(&initial, || Stack::init(device));
    let x = xs(device).remove(0).slice_fill([0..5, 0..1], f32::INFINITY);
    let mut fused = FusedOptimizer::new_ok(initial, SgdConfig::new().init())
        .with_hook(ParamGroup::from_predicate("blocks.1"), AnomalyCheck);
    let result = fused.step(RATE, |model| model.loss(x, each));
    let Err(FusedError::GradientNotFinite { path }) = result else {
        panic!("{result:?}")
    };
    assert!(path.starts_with("blocks.1."), "{path}");
    for ((path, before), (_, after)) in weights(&before).iter().zip(weights(&fused.model())) {
        let ahead = path.starts_with("input") || path.starts_with("blocks.0");
        let same = before.as_bytes() == after.as_bytes();
        assert!(
            same || !ahead || path.contains("running"),
            "`{path}` changed"
        );
    }
}

/// With the base frozen, adapters are parameters like others. With the base in training, it is an
/// ordinary leaf, stepped at the end of the pass.
fn blocks_with_lora_train_as_plain_ones(device: &Device) {
    let xs = xs(device);
    let lora = |unfrozen: bool| {
        let model = Stack::init(device).apply_lora(Lora::new(2, 4.0));
        if unfrozen { model.unfreeze() } else { model }
    };
    for unfrozen in [false, true] {
        let initial = lora(unfrozen);
        let train = |way: fn(&[Block], Tensor<2>) -> Tensor<2>| {
            let model = copy(&initial, || lora(unfrozen));
            let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
            assert_eq!(fused.num_retained() > 0, unfrozen);
            let [first, second, third, ..] = &xs[..] else {
                unreachable!()
            };
            fused.step_ok(RATE, |model| model.loss(first.clone(), way));
            assert_eq!(fused.last_step().without_gradient, 0);
            let mut fused = fused.with_config_ok(FusedConfig::exact(0.05));
            fused.accumulate_ok(|model| model.loss(second.clone(), way));
            fused.step_repeatable_ok(RATE, |model| model.loss(third.clone(), way));
            assert!(fused.last_step().clipping.unwrap() < 1.0);
            fused.valid()
        };
        let plain = train(plain);
        for way in [each, sequential, nested, first_and_last] {
            assert_equal_weights(&plain, &train(way));
        }
        assert_changed(&initial, &plain.train(), |path| {
            unfrozen || path.contains("lora") || path.contains("running")
        });

        let mut fused = FusedOptimizer::new_ok(initial, AdamWConfig::new().init());
        let runs = Arc::new(Mutex::new(BTreeSet::new()));
        fused.step_ok(RATE, |model| {
            type Runs = Constant<Arc<Mutex<BTreeSet<bool>>>>;
            let counted = |block: &Block, (x, Constant(runs)): (_, Runs)| {
                let recorded = block.expand.weight.val().is_tracked();
                runs.lock().unwrap().insert(recorded);
                block.forward(x)
            };
            let input = (xs[0].clone(), Constant(runs.clone()));
            gradient_checkpointing(&model.blocks[0], input, counted).mean()
        });
        assert_eq!(*runs.lock().unwrap(), BTreeSet::from([false, true]));
    }
}

on_every_backend!(
    policies_of_recomputed_blocks_equal_plain,
    an_anomaly_in_a_recomputed_block_stops_the_step,
    blocks_with_lora_train_as_plain_ones,
);

#[test]
fn hooks_see_the_gradients_of_plain_blocks() {
    let device = Device::flex().autodiff();
    let model = Stack::init(&device);
    let x = xs(&device).remove(0);
    let gradients = |way: fn(&[Block], Tensor<2>) -> Tensor<2>| {
        let model = copy(&model, || Stack::init(&device));
        let noting = Noting::default();
        let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init())
            .with_hook(ParamGroup::all(), noting.clone());
        fused.step_ok(RATE, |model| model.loss(x.clone(), way));
        let mut notes: Vec<Note> = noting.0.lock().unwrap().clone();
        notes.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        notes
    };
    let plain = gradients(plain);
    assert_eq!(plain.len(), 28);
    assert_eq!(plain, gradients(each));
    assert_eq!(plain, gradients(nested));
}
