//! Running statistics are the mean over the ranks.

use super::*;

#[derive(Module, Debug)]
struct TwoWays {
    linear: Linear,
    one: BatchNorm,
    other: BatchNorm,
}

/// A batch, and the options of its forward pass.
type Way = (Tensor<2>, bool, bool);

impl TwoWays {
    fn init(device: &Device) -> Self {
        let norm = || BatchNormConfig::new(2).with_momentum(0.3).init(device);
        Self {
            linear: LinearConfig::new(2, 2).init(device),
            one: norm(),
            other: norm(),
        }
    }

    fn loss(&self, (x, one, other): Way, in_a_block: bool) -> Tensor<1> {
        let run = move |model: &Self, x| {
            let x = model.linear.forward(x).tanh();
            let x = if one { model.one.forward(x) } else { x };
            match other {
                true => model.other.forward(x + 3.0),
                false => x,
            }
        };
        let x = block_if(in_a_block, self, x, run);
        x.powi_scalar(3).mean()
    }
}

/// Burn stores the updates of a statistic by thread. Threads without an update are not part of the mean. With more than
/// two threads its order is arbitrary.
#[test]
fn running_statistics_are_mean_over_ranks_that_updated_them() {
    let _alone = alone();
    let device = &flex(1)[0];
    let initial = TwoWays::init(device);
    let batch = || Tensor::<2>::random([6, 2], Distribution::Default, device);
    let one = || (batch(), true, false);
    let other = || (batch(), false, true);
    let both = || (batch(), true, true);
    // An update that does not change the mean counts, too.
    let nothing = || (Tensor::zeros([6, 2], device), true, false);
    let steps = [
        vec![nothing(), one(), other()],
        vec![one(), other(), both()],
        vec![both(), both()],
        vec![other(), other(), one()],
        vec![other()],
        vec![one(), one(), other()],
    ];
    for in_a_block in [false, true] {
        let stock = copy(&initial, || TwoWays::init(device));
        let model = copy(&initial, || TwoWays::init(device));
        let mut fused = FusedReplicas::new(model, SgdConfig::new().init(), flex(3)).unwrap();
        for batches in &steps {
            // One rank after the other, each on its own thread, as in Burn's training.
            std::thread::scope(|scope| {
                for batch in batches.clone() {
                    let stock = &stock;
                    let thread = scope.spawn(move || drop(stock.loss(batch, in_a_block)));
                    thread.join().unwrap();
                }
            });
            fused
                .step(0.0, batches.clone(), move |model: &TwoWays, batch| {
                    model.loss(batch, in_a_block)
                })
                .unwrap();
            assert_equal_weights(&stock.valid(), &fused.valid());
        }
    }
}

#[test]
fn model_taken_from_replicas_keeps_its_statistics() {
    let _alone = alone();
    let device = &flex(1)[0];
    let batch = |value: f32| (Tensor::<2>::full([6, 2], value, device), true, true);
    for sharding in SHARDINGS {
        let mut fused = FusedReplicas::new(TwoWays::init(device), adamw(), flex(2))
            .unwrap()
            .with_config(FusedConfig::sharded(sharding))
            .unwrap();
        let step = |fused: &mut FusedReplicas<TwoWays>, values: [f32; 2]| {
            let loss = |model: &TwoWays, batch| model.loss(batch, true);
            fused.step(RATE, values.map(batch), loss).unwrap();
        };
        step(&mut fused, [1.0, 2.0]);
        let (model, valid, averaged) = (fused.model(), fused.valid(), fused.averaged());
        let taken = || [&model, &valid, &averaged].map(weights);
        let before = taken();
        step(&mut fused, [3.0, 4.0]);
        step(&mut fused, [f32::NAN, f32::NAN]);
        assert!(taken() == before);
        assert_changed(&model, &fused.model(), |_| true);
    }
}
