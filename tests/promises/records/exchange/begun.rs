//! An unfinished group of micro-batches in the optimizer state is exchanged with the state.

use backburn::optim::{
    AccumulateInState, AdamConfig, AdamWConfig, ElementWiseOptimizer, SgdConfig,
};

use super::*;

impl Way {
    /// A record contains the sums, but not the fact that more micro-batches follow.
    fn ends_group(self) -> bool {
        matches!(self, Way::Record | Way::RecordInBytes)
    }
}

/// A training that accumulates in the state of an optimizer.
struct InState<R> {
    cell: Cell,
    optimizer: ElementWiseOptimizer<R>,
}

impl<R: AccumulateInState> InState<R> {
    fn fuse(&self, net: Net) -> FusedOptimizer<Net> {
        FusedOptimizer::accumulating_in_state(net, self.optimizer.clone()).unwrap()
    }

    fn exchange(&self, way: Way, mut fused: FusedOptimizer<Net>) -> FusedOptimizer<Net> {
        let record = match way {
            Way::IntoParts | Way::Config => return way.fused(&self.cell, fused),
            Way::FreezeAndThaw => {
                fused.change_model(freeze).unwrap();
                fused.change_model(Net::unfreeze).unwrap();
                return fused;
            }
            Way::Record => fused.to_record(),
            Way::RecordInBytes => reread(fused.to_record()),
        };
        let mut resumed = self.fuse(fused.model());
        resumed.load_record(record).unwrap();
        resumed
    }

    /// Trains a group of two; a group of two with the `exchange` in between, or one that `ends` there with a learning
    /// rate of zero; and a group of one.
    fn train(&self, ends: bool, exchange: Option<Way>) -> (Net, States) {
        let loss = |net: &Net, batch: &usize| net.loss(self.cell.batches[*batch].clone());
        let mut fused = self.fuse(self.cell.net());
        step_group(&mut fused, RATE, &[0, 1], loss);
        match ends {
            false => drop(fused.accumulate(|net| loss(net, &2)).unwrap()),
            true => drop(fused.step(0.0, |net| loss(net, &2)).unwrap()),
        }
        if let Some(way) = exchange {
            fused = self.exchange(way, fused);
        }
        fused.step(RATE, |net| loss(net, &3)).unwrap();
        fused.step(RATE, |net| loss(net, &4)).unwrap();
        (fused.model(), states(fused.to_record()))
    }
}

fn assert_kept(name: &str, optimizer: ElementWiseOptimizer<impl AccumulateInState>) {
    for dtype in TYPES {
        let training = InState {
            cell: Cell::new(optimizer.clone().into(), dtype),
            optimizer: optimizer.clone(),
        };
        for way in WAYS {
            println!("{way:?}, {name}, {dtype:?}");
            let exchanged = training.train(false, Some(way));
            let expected = match way.ends_group() {
                false => training.train(false, None),
                true => training.train(true, Some(way)),
            };
            assert_same(&expected, &exchanged);
        }
    }
}

#[test]
fn group_in_state_continues_or_ends_in_record() {
    let momentum = || Some(MomentumConfig::new());
    assert_kept("Sgd", SgdConfig::new().with_momentum(momentum()).build());
    assert_kept("Adam", AdamConfig::new().build());
    assert_kept("AdamW", AdamWConfig::new().with_amsgrad(true).build());
}
