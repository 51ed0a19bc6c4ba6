//! An optimizer that panics in any update loses only the state of that update.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::optim::{AdamW, Sgd};

use super::*;

/// An optimizer that panics once, in update number `update`.
fn panicking<O: Optimizer>(inner: O, update: usize) -> ModuleOptimizer {
    let updates = AtomicUsize::new(0);
    let panics = move |_: &[usize]| {
        let before = updates.fetch_add(1, Ordering::Relaxed);
        assert!(before != update, "no further");
    };
    intercepted(inner, panics).into()
}

/// Trains until the optimizer panics in update number `update` (four per step), and then two more steps. The reference
/// is stock Burn without the missing updates and the lost state.
fn survives<O: Optimizer>(device: &Device, update: usize, inner: impl Fn() -> O) {
    let mut stock = Mlp::init(device);
    let mut stock_optimizer = ModuleOptimizer::from(inner());
    let mut fused = FusedOptimizer::new(copied(&stock), panicking(inner(), update)).unwrap();
    let ids: HashMap<String, ParamId> = [("input", &stock.input), ("output", &stock.output)]
        .into_iter()
        .flat_map(|(name, layer)| {
            let bias = layer.bias.as_ref().unwrap().id;
            [("weight", layer.weight.id), ("bias", bias)]
                .map(|(part, id)| (format!("{name}.{part}"), id))
        })
        .collect();

    for (step, x) in xs(device, 5).iter().enumerate() {
        let mut gradients = summed(&stock, std::slice::from_ref(x), loss);
        if update / 4 == step {
            let before = weights(&fused.model());
            let message = panic_of(|| fused.step(RATE, |model| loss(model, x)).unwrap());
            assert_says(&message, "no further");
            // The last parameters are updated first.
            let after = weights(&fused.model());
            let pairs = before.iter().zip(&after).filter(|(a, b)| a != b);
            let changed: Vec<ParamId> = pairs.map(|((path, _), _)| ids[path]).collect();
            assert_eq!(changed.len(), update % 4);
            map_gradients(&stock, &mut gradients, |id, gradient| {
                changed.contains(&id).then_some(gradient)
            });
            let mut named = ids.iter();
            let lost = named.find(|(path, _)| message.contains(&format!("`{path}`")));
            let (_, lost) = lost.expect("the parameter is named");
            // Burn drops the states of a group for which another optimizer is added.
            let group = ParamGroup::from_ids(vec![*lost]);
            stock_optimizer = stock_optimizer.with_group(group, inner(), None);
        } else {
            fused.step(RATE, |model| loss(model, x)).unwrap();
            assert_eq!(fused.last_step().updated, 4);
        }
        stock = stock_optimizer.step(RATE, stock, gradients);
        assert_equal_weights(&stock, &fused.model());
        // All other states remain: Burn's record has the same number.
        let (expected, found) = (stock_optimizer.to_record(), fused.to_record());
        assert_eq!(expected.len(), found.len(), "after step {step}");
    }
    let (model, optimizer) = fused.into_parts();
    assert_equal_weights(&stock, &model);
    let (expected, found) = (stock_optimizer.to_record(), optimizer.to_record());
    assert_eq!(expected.len(), found.len());
}

fn optimizer_panic_at_any_update_loses_one_state(device: &Device) {
    // Only CPU backends are fast enough.
    let updates: &[usize] = match is_exact(device) {
        true => &[0, 1, 3, 4, 6, 7, 9, 11, 13],
        false => &[6],
    };
    for &update in updates {
        survives::<AdamW>(device, update, || AdamWConfig::new().build());
        survives::<Sgd>(device, update, || {
            let momentum = Some(MomentumConfig::new());
            SgdConfig::new().with_momentum(momentum).build()
        });
    }
}

on_every_backend!(optimizer_panic_at_any_update_loses_one_state);

/// With values of another type than that of a record, and with retained parameters.
#[test]
fn state_lost_in_panic_starts_again_in_f64_and_if_retained() {
    let wide = cast(Mlp::init(&flex()), FloatDType::F64).unwrap();
    let x = &xs(&flex(), 1)[0];
    let lora = Mlp::init(&flex());
    let lora = lora.apply_lora(Lora::new(2, 4.0)).unfreeze();
    let wide_x = x.clone().cast(FloatDType::F64);
    for (model, x, updates) in [(wide, &wide_x, 4), (lora, x, 8)] {
        for failing in [updates, updates + 2, 2 * updates - 1] {
            let optimizer = panicking(AdamWConfig::new().build(), failing);
            let mut fused = FusedOptimizer::new(model.clone(), optimizer).unwrap();
            let step = |fused: &mut FusedOptimizer<Mlp>| {
                drop(fused.step(RATE, |model| loss(model, x)).unwrap());
            };
            step(&mut fused);
            assert_eq!(fused.last_step().updated, updates);
            let states = fused.to_record().len();
            let message = panic_of(|| step(&mut fused));
            assert_says(&message, "no further");
            assert!(fused.to_record().len() < states, "at update {failing}");
            step(&mut fused);
            assert_eq!(fused.to_record().len(), states, "at update {failing}");
            assert_eq!(fused.last_step().updated, updates);
            fused.valid();
        }
    }
}
