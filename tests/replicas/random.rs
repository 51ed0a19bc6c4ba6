//! Every rank draws random numbers of its own, the same whenever a seeded program runs.

use super::*;

/// Blocks with dropout inside and outside.
#[derive(Module, Debug)]
struct Dropping {
    layers: Vec<Linear>,
    dropout: Dropout,
}

impl Dropping {
    fn init(device: &Device) -> Self {
        let layer = |_| LinearConfig::new(16, 16).init(device);
        Self {
            layers: (0..4).map(layer).collect(),
            dropout: DropoutConfig::new(0.4).init(),
        }
    }

    fn loss(&self, x: Tensor<2>, in_blocks: bool) -> Tensor<1> {
        let x = self.dropout.forward(x);
        let x = self.layers.iter().fold(x, |x, layer| {
            let block = (layer.clone(), self.dropout.clone());
            let run =
                |(layer, dropout): &(Linear, Dropout), x| dropout.forward(layer.forward(x).tanh());
            block_if(in_blocks, &block, x, run)
        });
        x.powi_scalar(2).mean()
    }
}

fn trained(
    initial: &Dropping,
    ranks: usize,
    steps: usize,
    choose: impl Fn(FusedReplicas<Dropping>) -> FusedReplicas<Dropping>,
    in_blocks: bool,
) -> (Dropping, Vec<Vec<f32>>) {
    let device = Device::flex().autodiff();
    device.seed(7);
    let model = copy(initial, || Dropping::init(&device));
    device.seed(11);
    let fused = FusedReplicas::new_ok(model, SgdConfig::new().init(), flex(ranks));
    let mut fused = choose(fused);
    let x = Tensor::ones([64, 16], &device);
    let step = |_| {
        let losses =
            fused.step_repeatable_ok(RATE, vec![x.clone(); ranks], move |model: &Dropping, x| {
                model.loss(x, in_blocks)
            });
        losses
            .into_iter()
            .map(|loss| loss.into_scalar::<f32>())
            .collect()
    };
    let losses = (0..steps).map(step).collect();
    (fused.model(), losses)
}

#[test]
fn ranks_draw_their_own_numbers_and_the_same_in_every_run() {
    let _alone = alone();
    let initial = Dropping::init(&Device::flex().autodiff());
    for in_blocks in [false, true] {
        let run = || trained(&initial, 3, 20, |fused| fused, in_blocks);
        let ((model, losses), (again, losses_again)) = (run(), run());
        assert_eq!(losses, losses_again);
        assert_equal_weights(&model, &again);
        for of_step in &losses {
            assert!(
                of_step[0] != of_step[1] && of_step[1] != of_step[2],
                "{of_step:?}"
            );
        }
        let different = losses.windows(2).filter(|steps| steps[0][0] != steps[1][0]);
        assert_eq!(different.count(), losses.len() - 1);
    }
}

/// With SGD the model after a step tells the gradients: those of blocks that run twice must be those of the blocks that
/// kept their activations.
#[test]
fn blocks_see_their_own_numbers_twice_whatever_other_ranks_draw() {
    let _alone = alone();
    let initial = Dropping::init(&Device::flex().autodiff());
    for sharding in [Sharding::State, Sharding::Full] {
        let kept =
            backburn::GradientCheckpointingConfig::new().with_keep_activations(vec![true; 4]);
        let keep = |fused: FusedReplicas<Dropping>| {
            fused.with_config_ok(
                FusedConfig::sharded(sharding).with_gradient_checkpointing(kept.clone()),
            )
        };
        let (expected, losses) = trained(&initial, 4, 20, keep, true);
        let twice =
            |fused: FusedReplicas<Dropping>| fused.with_config_ok(FusedConfig::sharded(sharding));
        let (found, found_losses) = trained(&initial, 4, 20, twice, true);
        assert_eq!(losses, found_losses);
        assert_equal_weights(&expected, &found);
    }
}

#[test]
fn both_passes_of_a_step_see_the_same_numbers() {
    let _alone = alone();
    let initial = Dropping::init(&Device::flex().autodiff());
    for in_blocks in [false, true] {
        let clip = |max| {
            move |fused: FusedReplicas<Dropping>| fused.with_config_ok(FusedConfig::exact(max))
        };
        let (one, losses) = trained(&initial, 3, 10, clip(1e9), in_blocks);
        let (again, same) = trained(&initial, 3, 10, clip(1e9), in_blocks);
        assert_eq!(losses, same);
        assert_equal_weights(&one, &again);
    }
}
