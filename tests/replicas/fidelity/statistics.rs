//! Running statistics are the mean over the ranks.

use super::*;

/// The mean of the ranks' statistics, as in Burn's training, whose workers each keep a thread.
#[test]
fn running_statistics_are_the_mean_over_ranks_of_a_device() {
    #[derive(Module, Debug)]
    struct Normed {
        norm: BatchNorm,
    }

    let _alone = alone();
    let device = Device::flex().autodiff();
    let model = Normed {
        norm: BatchNormConfig::new(2).with_momentum(0.5).init(&device),
    };
    let mut fused = FusedReplicas::new_ok(model, adamw(), flex(2));
    let batch = |low: f32, high: f32| Tensor::<2>::from_data([[low, low], [high, high]], &device);
    let mut expected = 0.0;
    for (a, b) in [(1.0, 3.0), (2.0, 4.0), (0.0, 1.0)] {
        let batches = [batch(a, a + 2.0), batch(b, b + 2.0)];
        fused.step_ok(RATE, batches, |model: &Normed, x| {
            model.norm.forward(x).powi_scalar(3).mean()
        });
        expected = 0.5 * expected + 0.5 * ((a + 1.0) + (b + 1.0)) / 2.0;
    }
    let mean: f32 = fused
        .valid()
        .norm
        .running_mean
        .value()
        .into_data()
        .iter()
        .next()
        .unwrap();
    assert!((mean - expected).abs() < 1e-6, "{mean}, not {expected}");
}

#[derive(Module, Debug)]
struct TwoWays {
    one: BatchNorm,
    other: BatchNorm,
}

impl TwoWays {
    fn init(device: &Device) -> Self {
        let norm = || BatchNormConfig::new(2).with_momentum(0.3).init(device);
        Self {
            one: norm(),
            other: norm(),
        }
    }

    fn loss(&self, (x, one, other): Way, in_a_block: bool) -> Tensor<1> {
        let run = move |model: &Self, x| {
            let x = if one { model.one.forward(x) } else { x };
            if other {
                model.other.forward(x + 3.0)
            } else {
                x
            }
        };
        let x = block_if(in_a_block, self, x, run);
        x.powi_scalar(3).mean()
    }
}

/// Burn keeps the updates of a statistic by the thread that has made them: those that have made none have no part in
/// the mean. Its order of more than two threads is any.
#[test]
fn running_statistics_are_the_mean_over_the_ranks_that_have_updated_them() {
    let _alone = alone();
    let device = &flex(1)[0];
    let initial = TwoWays::init(device);
    let batch = || Tensor::<2>::random([6, 2], Distribution::Default, device);
    let one = || (batch(), true, false);
    let other = || (batch(), false, true);
    let both = || (batch(), true, true);
    // An update that leaves the mean as it is counts, too.
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
        let mut fused = FusedReplicas::new_ok(model, SgdConfig::new().init(), flex(3));
        for batches in &steps {
            // One rank after the other, each on a thread of its own, as in Burn's training.
            std::thread::scope(|scope| {
                for batch in batches.clone() {
                    let stock = &stock;
                    let thread = scope.spawn(move || drop(stock.loss(batch, in_a_block)));
                    thread.join().unwrap();
                }
            });
            let batches = batches.clone();
            fused.step_ok(0.0, batches, move |model: &TwoWays, batch| {
                model.loss(batch, in_a_block)
            });
            assert_equal_weights(&stock.valid(), &fused.valid());
        }
    }
}

#[derive(Module, Debug)]
struct NormedBlocks {
    blocks: Vec<(Linear, BatchNorm)>,
}

impl NormedBlocks {
    fn init(device: &Device) -> Self {
        let block = |_| {
            let linear = LinearConfig::new(4, 4).init(device);
            (linear, BatchNormConfig::new(4).init(device))
        };
        Self {
            blocks: (0..3).map(block).collect(),
        }
    }

    fn loss(&self, x: Tensor<2>, in_blocks: bool) -> Tensor<1> {
        let run = |block: &(Linear, BatchNorm), x| block.1.forward(block.0.forward(x).tanh());
        let x = self
            .blocks
            .iter()
            .fold(x, |x, block| block_if(in_blocks, block, x, run));
        x.powi_scalar(3).mean()
    }
}

#[test]
fn blocks_update_running_statistics_once_on_every_rank() {
    let _alone = alone();
    let device = &flex(1)[0];
    let initial = NormedBlocks::init(device);
    let steps: Vec<Vec<Tensor<2>>> = (0..4)
        .map(|_| {
            let batch = || Tensor::random([6, 4], Distribution::Default, device);
            vec![batch(), batch(), batch()]
        })
        .collect();
    let train = |in_blocks| {
        let model = copy(&initial, || NormedBlocks::init(device));
        let mut fused = FusedReplicas::new_ok(model, SgdConfig::new().init(), flex(3));
        for (index, batches) in steps.iter().enumerate() {
            // One rank less now and then.
            let batches = batches.iter().take(3 - index % 2).cloned();
            fused.step_ok(RATE, batches, move |model: &NormedBlocks, x| {
                model.loss(x, in_blocks)
            });
        }
        fused.model()
    };
    assert_equal_weights(&train(false), &train(true));
}

#[test]
fn model_taken_from_replicas_keeps_its_statistics() {
    let _alone = alone();
    let device = &flex(1)[0];
    let batch = |value: f32| Tensor::<2>::full([6, 4], value, device);
    for sharding in [Sharding::State, Sharding::Full] {
        let mut fused = FusedReplicas::new_ok(NormedBlocks::init(device), adamw(), flex(2))
            .with_config_ok(FusedConfig::sharded(sharding));
        let step = |fused: &mut FusedReplicas<NormedBlocks>, values: [f32; 2]| {
            fused.step_ok(RATE, values.map(batch), |model: &NormedBlocks, x| {
                model.loss(x, true)
            });
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
