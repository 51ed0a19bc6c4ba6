//! An optimizer that panics takes the state that it was given along and nothing else, whichever update it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::optim::{AdamW, LearningRate, Sgd};

use super::*;
use crate::backends::on_every_backend;

/// An optimizer that panics once, in the update that the counter comes to zero with.
#[derive(Clone)]
struct Panicking<O> {
    inner: O,
    updates_left: Arc<AtomicUsize>,
}

impl<O: Optimizer> Optimizer for Panicking<O> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<O::State<D>>,
    ) -> (Tensor<D>, Option<O::State<D>>) {
        if self.updates_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            panic!("no further");
        }
        self.inner.step(learning_rate, tensor, gradient, state)
    }

    fn to_device<const D: usize>(state: O::State<D>, device: &Device) -> O::State<D> {
        O::to_device(state, device)
    }
}

/// Trains until the optimizer panics in its `update`-th update (of four a step), then two steps more;
/// beside it stock Burn, without the updates that were not made, and without the state that was lost.
fn survives<O: Optimizer>(device: &Device, update: usize, inner: impl Fn() -> O) {
    let initial = Mlp::init(device);
    let copy = || copy(&initial, || Mlp::init(device));
    let xs = xs(device, 5);
    let updates_left = Arc::new(AtomicUsize::new(update));
    let optimizer = Panicking {
        inner: inner(),
        updates_left,
    };
    let mut fused = FusedOptimizer::new_ok(copy(), optimizer.into());
    let mut stock = copy();
    let mut stock_optimizer = ModuleOptimizer::from(inner());

    for (step, x) in xs.iter().enumerate() {
        let gradients = stock.loss(x.clone()).backward();
        let mut gradients = GradientsParams::from_grads(gradients, &stock);
        let panics = update / 4 == step;
        if panics {
            let before = weights(&fused.model());
            let message = panic_of(|| fused.step_ok(RATE, |model| model.loss(x.clone())));
            let found = weights(&fused.model());
            // The last parameters come first.
            let changed: Vec<_> = before
                .iter()
                .zip(&found)
                .map(|((_, a), (_, b))| a.as_bytes() != b.as_bytes())
                .collect();
            assert_eq!(
                changed.iter().filter(|changed| **changed).count(),
                update % 4
            );
            assert_says(&message, "no further");
            assert!(
                message.contains("put."),
                "the parameter is named: {message}"
            );
            let lost = [("input", &stock.input), ("output", &stock.output)]
                .into_iter()
                .flat_map(|(name, layer)| {
                    let bias = layer.bias.as_ref().unwrap().id;
                    [
                        (format!("{name}.weight"), layer.weight.id),
                        (format!("{name}.bias"), bias),
                    ]
                })
                .find(|(path, _)| message.contains(&format!("`{path}`")))
                .map(|(_, id)| ParamGroup::from_ids(vec![id]));
            // Burn drops the states of a group that another optimizer is added for.
            stock_optimizer = stock_optimizer.with_group(lost.unwrap(), inner(), None);
            // In the order of the visit: weight and bias of the input, then of the output.
            for (layer, changed) in [&stock.input, &stock.output].iter().zip(changed.chunks(2)) {
                if !changed[0] {
                    gradients.remove::<2>(layer.weight.id);
                }
                if !changed[1] {
                    gradients.remove::<1>(layer.bias.as_ref().unwrap().id);
                }
            }
        } else {
            fused.step_ok(RATE, |model| model.loss(x.clone()));
            assert_eq!(fused.last_step().updated, 4);
        }
        stock = stock_optimizer.step(RATE, stock, gradients);
        assert_equal_weights(&stock, &fused.model());
        // Every other state is there: Burn's record holds as many.
        let (expected, found) = (stock_optimizer.to_record(), fused.to_record());
        assert_eq!(expected.len(), found.len(), "after step {step}");
    }
    let (model, optimizer) = fused.into_parts();
    assert_equal_weights(&stock, &model);
    assert_eq!(
        optimizer.to_record().len(),
        stock_optimizer.to_record().len()
    );
}

fn an_optimizer_that_panics_at_any_update_loses_one_state(device: &Device) {
    // Every backend but those of the CPU takes its time.
    let updates: &[usize] = match is_exact(device) {
        true => &[0, 1, 3, 4, 6, 7, 9, 11, 13],
        false => &[6],
    };
    for &update in updates {
        survives::<AdamW>(device, update, || AdamWConfig::new().build());
        survives::<Sgd>(device, update, || {
            let momentum = MomentumConfig::new();
            SgdConfig::new().with_momentum(Some(momentum)).build()
        });
    }
}

on_every_backend!(an_optimizer_that_panics_at_any_update_loses_one_state);

/// With values of other types than that of a record, and those of parameters that are stepped at the end.
#[test]
fn the_value_stays_and_its_state_starts_anew_in_f64_and_for_retained_parameters() {
    let device = &flex();
    let wide = Mlp::init(device).map(&mut Wide);
    let x = &xs(device, 1)[0];
    let lora = Mlp::init(device).apply_lora(Lora::new(2, 4.0)).unfreeze();
    let wide_x = x.clone().cast(FloatDType::F64);
    for (model, x, updates) in [(wide, &wide_x, 4), (lora, x, 8)] {
        for failing in [updates, updates + 2, 2 * updates - 1] {
            let optimizer = Panicking {
                inner: AdamWConfig::new().build(),
                updates_left: Arc::new(AtomicUsize::new(failing)),
            };
            let mut fused = FusedOptimizer::new_ok(model.clone(), optimizer.into());
            let step = |fused: &mut FusedOptimizer<Mlp>| {
                fused.step_ok(RATE, |model| model.loss(x.clone()));
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

struct Wide;

impl ModuleMapper for Wide {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let wide = value.inner().cast(FloatDType::F64);
            Tensor::from_inner(wide).require_grad()
        })
    }
}
