//! Every rank draws its own random numbers, which are the same in every run of a seeded program.

use super::*;

/// Blocks with dropout inside and outside.
#[derive(Module, Debug)]
struct Dropping {
    layers: Vec<Linear>,
    dropout: Dropout,
}

/// The place where a model draws.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Draws {
    Plainly,
    InBlocks,
    /// Steps that draw alternate with steps that don't.
    EverySecondStep,
}

impl Dropping {
    fn init() -> Self {
        let layer = |_| LinearConfig::new(16, 16).init(&flex(1)[0]);
        Self {
            layers: (0..4).map(layer).collect(),
            dropout: DropoutConfig::new(0.4).init(),
        }
    }

    fn loss(&self, x: Tensor<2>, draws: Draws, step: usize) -> Tensor<1> {
        let dropout = match draws {
            Draws::EverySecondStep if !step.is_multiple_of(2) => DropoutConfig::new(0.0).init(),
            _ => self.dropout.clone(),
        };
        let x = dropout.forward(x);
        let x = self.layers.iter().fold(x, |x, layer| {
            let block = (layer.clone(), dropout.clone());
            let run =
                |(layer, dropout): &(Linear, Dropout), x| dropout.forward(layer.forward(x).tanh());
            block_if(draws == Draws::InBlocks, &block, x, run)
        });
        x.powi_scalar(2).mean()
    }
}

/// Returns the model and the losses of all ranks after 20 steps.
fn trained(initial: &Dropping, draws: Draws) -> (Dropping, Vec<Vec<f32>>) {
    let device = &flex(1)[0];
    device.seed(7);
    let model = copy(initial, Dropping::init);
    device.seed(11);
    let mut fused = FusedReplicas::new(model, SgdConfig::new().init(), flex(3)).unwrap();
    let step = |step| {
        let batches = vec![Tensor::ones([64, 16], device); 3];
        let loss = move |model: &Dropping, x| model.loss(x, draws, step);
        let losses = fused.step(RATE, batches, loss).unwrap().into_iter();
        losses.map(|loss| loss.into_scalar::<f32>()).collect()
    };
    let losses = (0..20).map(step).collect();
    (fused.model(), losses)
}

#[test]
fn ranks_draw_their_own_numbers_repeatably() {
    let _alone = alone();
    let initial = Dropping::init();
    for draws in [Draws::Plainly, Draws::InBlocks, Draws::EverySecondStep] {
        let run = || trained(&initial, draws);
        let ((model, losses), (again, losses_again)) = (run(), run());
        assert_eq!(losses, losses_again, "{draws:?}");
        assert_equal_weights(&model, &again);
        if draws == Draws::EverySecondStep {
            continue;
        }
        for ranks in &losses {
            assert!(ranks[0] != ranks[1] && ranks[1] != ranks[2], "{ranks:?}");
        }
        let different = losses.windows(2).filter(|steps| steps[0][0] != steps[1][0]);
        assert_eq!(different.count(), losses.len() - 1, "{draws:?}");
    }
}
