//! Averages of running statistics.

use super::*;

/// Layers with running statistics between them.
#[derive(Module, Debug)]
struct Normed {
    first: Linear,
    norm: BatchNorm,
    second: Linear,
}

impl Normed {
    fn init() -> Self {
        let device = Device::flex().autodiff();
        Self {
            first: LinearConfig::new(8, 8).init(&device),
            norm: BatchNormConfig::new(8).init(&device),
            second: LinearConfig::new(8, 8).init(&device),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.norm.forward(self.first.forward(x).tanh());
        self.second.forward(x).powi_scalar(2).mean()
    }

    fn statistics(&self) -> [Tensor<1>; 2] {
        let norm = &self.norm;
        [
            norm.running_mean.value_sync(),
            norm.running_var.value_sync(),
        ]
    }
}

#[test]
fn running_statistics_are_averaged_if_asked_for_and_else_copied() {
    let initial = Normed::init();
    let xs = batches(6, 8);
    let fused = |config| {
        let model = copy(&initial, Normed::init);
        FusedOptimizer::new(model, optim::AdamWConfig::new().init()).with_config(averaging(config))
    };
    let [mut averaged, mut copied] =
        [true, false].map(|of| fused(ema(0.5).with_running_statistics(of)));
    let mut plain = FusedOptimizer::new(
        copy(&initial, Normed::init),
        optim::AdamWConfig::new().init(),
    );
    let mut by_hand: Option<[Tensor<1>; 2]> = None;
    for (step, x) in xs.iter().enumerate() {
        let loss = |model: &Normed| model.loss(x.clone());
        plain.step(RATE, loss);
        copied.step(RATE, loss);
        averaged.step(RATE, loss);
        let now = plain.valid().statistics();
        by_hand = Some(match by_hand {
            None => now,
            Some(mean) => [0, 1].map(|of| mean[of].clone() * 0.5 + now[of].clone() * 0.5),
        });
        let expected = by_hand.clone().unwrap();
        let [found, current] = [averaged.averaged(), copied.averaged()].map(|of| of.valid());
        for of in [0, 1] {
            let bits = |model: &Normed| model.statistics()[of].clone().into_data();
            bits(&found).assert_eq(&expected[of].clone().into_data(), true);
            bits(&current).assert_eq(&bits(&plain.valid()), true);
            if step > 0 {
                assert_ne!(bits(&found), bits(&current));
            }
        }
        // What was averaged belongs to nobody else: the training has its own statistics.
        assert_equal_weights(&plain.valid(), &averaged.valid());
        if step == 2 {
            // Averages go along in a record, and to a clone.
            let mut resumed = FusedOptimizer::new(
                copy(&averaged.model(), Normed::init),
                optim::AdamWConfig::new().init(),
            )
            .with_config(averaged.config().clone());
            resumed.load_record(averaged.to_record());
            assert_equal_weights(&averaged.averaged().valid(), &resumed.averaged().valid());
            averaged = averaged.clone();
        }
    }
}
