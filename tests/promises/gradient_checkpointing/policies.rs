//! Policies treat the gradients of recomputed blocks as those of plain ones.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::*;

fn anomaly_in_recomputed_block_stops_step(device: &Device) {
    let initial = Stack::init(device);
    let before = copy(&initial, || Stack::init(device));
    let x = xs(device).remove(0).slice_fill([0..5, 0..1], f32::INFINITY);
    let mut fused = FusedOptimizer::new(initial, SgdConfig::new().init())
        .unwrap()
        .with_hook(ParamGroup::from_predicate("blocks.1"), AnomalyCheck);
    let result = fused.step(RATE, |model| model.loss(x, each));
    let Err(FusedError::GradientNotFinite { path }) = result else {
        panic!("{result:?}")
    };
    assert!(path.starts_with("blocks.1."), "{path}");
    assert_kept(&before, &fused.model(), |path| {
        path.starts_with("input") || path.starts_with("blocks.0")
    });
}

/// With the base frozen, adapters are parameters like others. With the base in training, it is an ordinary leaf, stepped at the
/// end of the pass.
fn blocks_with_lora_and_policies_train_as_plain_ones(device: &Device) {
    let xs = xs(device);
    let adapted = |model: Stack| model.apply_lora(Lora::new(2, 4.0));
    let kinds: [(&str, &dyn Fn(Stack) -> Stack); 3] = [
        ("plain", &|model| model),
        ("lora", &adapted),
        ("unfrozen", &|model| adapted(model).unfreeze()),
    ];
    for (kind, change) in kinds {
        println!("{kind}");
        let init = || change(Stack::init(device));
        let ways: [Way; 5] = [plain, each, sequential, nested, first_and_last];
        assert_equal_in(&ways, init, |mut fused, way| {
            let initial = copy(&fused.model(), init);
            assert_eq!(fused.num_retained() > 0, kind == "unfrozen");
            fused
                .step(RATE, |model| model.loss(xs[0].clone(), way))
                .unwrap();
            assert_eq!(fused.last_step().without_gradient, 0);
            let scaling = LossScalingConfig::new().with_initial_scale(1024.0);
            let config = FusedConfig::exact(0.05).with_loss_scaling(Some(scaling));
            let mut fused = fused.with_config(config).unwrap();
            fused
                .accumulate(|model| model.loss(xs[1].clone(), way))
                .unwrap();
            fused
                .step_repeatable(RATE, |model| model.loss(xs[2].clone(), way))
                .unwrap();
            assert!(fused.last_step().clipping.unwrap() < 1.0);
            assert_changed(&initial, &fused.model(), |path| {
                kind != "lora" || path.contains("lora") || path.contains("running")
            });
            fused
        });

        let mut fused = FusedOptimizer::new(init(), AdamWConfig::new().init()).unwrap();
        let runs = Arc::new(Mutex::new(BTreeSet::new()));
        fused
            .step(RATE, |model| {
                type Runs = Constant<Arc<Mutex<BTreeSet<bool>>>>;
                let counted = |block: &Block, (x, Constant(runs)): (_, Runs)| {
                    let recorded = block.expand.weight.val().is_tracked();
                    runs.lock().unwrap().insert(recorded);
                    block.forward(x)
                };
                let input = (xs[0].clone(), Constant(runs.clone()));
                gradient_checkpointing(&model.blocks[0], input, counted).mean()
            })
            .unwrap();
        assert_eq!(*runs.lock().unwrap(), BTreeSet::from([false, true]));
    }
}

on_every_backend!(
    anomaly_in_recomputed_block_stops_step,
    blocks_with_lora_and_policies_train_as_plain_ones,
);
