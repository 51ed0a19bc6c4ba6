//! Trainings that draw random numbers on several threads wait for each other.

use std::thread;

use crate::common::*;
use crate::{ALONE, Dropping, Last, dropping, keep};

const STEPS: usize = 8;

/// The place where a model draws.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Block,
    NestedBlock,
    OutsideOfBlocks,
    Both,
}

pub(crate) const PLACES: [Place; 4] = [
    Place::Block,
    Place::NestedBlock,
    Place::OutsideOfBlocks,
    Place::Both,
];

impl Place {
    /// A loss that is linear in the weight, and its gradient.
    fn loss(self, model: &Dropping, x: Tensor<1>) -> (Tensor<1>, Tensor<1>) {
        let drops = |model: &Dropping, x: Tensor<1>| model.1.forward(x);
        let dropped = match self {
            Self::Block => gradient_checkpointing(model, x, weighted),
            Self::NestedBlock => gradient_checkpointing(model, x, |model: &Dropping, x| {
                gradient_checkpointing(model, model.1.forward(x), weighted)
            }),
            Self::OutsideOfBlocks => weighted(model, x),
            Self::Both => gradient_checkpointing(model, drops(model, x), weighted),
        };
        (dropped.clone().sum(), dropped.detach())
    }
}

fn weighted((weight, dropout): &Dropping, x: Tensor<1>) -> Tensor<1> {
    // Long enough for another thread to run during it.
    let noise = Tensor::<1>::random([20_000], Distribution::Default, &x.device());
    dropout.forward(weight.val() * x) + noise.mean().detach() * 0.0
}

fn config(clips: bool, sharding: Sharding) -> FusedConfig {
    let clipping = clips.then_some(GlobalNormClippingConfig::Exact(1e9));
    FusedConfig::new()
        .with_clipping(clipping)
        .with_sharding(sharding)
}

fn check(last: &Last, ranks: Vec<Tensor<1>>) {
    let mut sum = vec![0.0; 64];
    for dropped in ranks {
        let values = dropped.into_data();
        let pairs = sum.iter_mut().zip(values.iter::<f32>());
        pairs.for_each(|(sum, value)| *sum += value);
    }
    assert_eq!(*last.lock().unwrap(), sum);
}

pub(crate) fn train_alone(device: &Device, place: Place, clips: bool) -> Result<(), FusedError> {
    let gradient = Last::default();
    let mut fused = FusedOptimizer::new(dropping(device), SgdConfig::new().init())?
        .with_config(config(clips, Sharding::State))?
        .with_hook(ParamGroup::all(), keep(&gradient));
    for _ in 0..STEPS {
        let step =
            fused.step_repeatable(0.0, |model| place.loss(model, Tensor::ones([64], device)));
        check(&gradient, vec![step?.1]);
    }
    Ok(())
}

fn train_replicas(device: &Device, place: Place, clips: bool, sharding: Sharding) {
    let gradient = Last::default();
    let (devices, config) = (vec![device.clone(); 3], config(clips, sharding));
    let optimizer = SgdConfig::new().init();
    let mut fused = FusedReplicas::new_with_config(dropping(device), optimizer, devices, config)
        .unwrap()
        .with_hook(ParamGroup::all(), keep(&gradient));
    for _ in 0..STEPS {
        let batches = vec![Tensor::<1>::ones([64], device); 3];
        let step = fused.step_repeatable(0.0, batches, move |model, x| place.loss(model, x));
        let ranks = step.unwrap().into_iter();
        check(&gradient, ranks.map(|(_, dropped)| dropped).collect());
    }
}

fn replicas_and_other_trainings_draw_apart(device: &Device) {
    let _alone = ALONE.lock();
    for sharding in [Sharding::State, Sharding::Full] {
        thread::scope(|scope| {
            for (place, clips) in product(PLACES, [false, true]) {
                scope.spawn(move || train_alone(device, place, clips).unwrap());
                scope.spawn(move || train_replicas(device, place, clips, sharding));
            }
        });
    }
}

/// The forward pass of the closure has ended, and with it the lock of the generators. Trainings on two threads take turns.
fn block_after_own_backward_pass_draws_its_numbers_again(device: &Device) {
    let _alone = ALONE.lock();
    thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(|| train_with_probe(device))));
    });
}

fn train_with_probe(device: &Device) {
    let gradient = Last::default();
    let mut fused = FusedOptimizer::new(dropping(device), SgdConfig::new().init())
        .unwrap()
        .with_hook(ParamGroup::all(), keep(&gradient));
    let probes = [dropping(device), dropping(device)];
    let check = |probe: &Dropping| {
        let run = |(weight, dropout): &Dropping, x| dropout.forward(weight.val() * x);
        let x = Tensor::<1>::ones([64], device);
        let dropped = gradient_checkpointing(probe, x, run);
        let gradients = dropped.clone().sum().backward();
        // The loss is linear in the weight.
        let of_weight = probe.0.val().grad(&gradients).unwrap();
        assert_eq!(of_weight.into_data(), dropped.inner().into_data());
    };
    for _ in 0..3 {
        let step = fused.step_with_backward(0.0, |model| {
            let loss = model.0.val().sum();
            let gradients = GradientsParams::from_grads(loss.backward(), model);
            let context = StepContext::current().unwrap();
            thread::scope(|scope| {
                for probe in &probes {
                    let (context, check) = (&context, &check);
                    scope.spawn(move || context.enter(|| check(probe)));
                }
            });
            ((), gradients)
        });
        step.unwrap();
    }
}

on_every_cpu_backend!(
    block_after_own_backward_pass_draws_its_numbers_again,
    replicas_and_other_trainings_draw_apart,
);
