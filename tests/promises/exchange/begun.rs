//! A group of micro-batches that has begun in the optimizer state changes hands with it.

use backburn::optim::{
    AccumulateInState, AdamConfig, AdamWConfig, ElementWiseOptimizer, SgdConfig,
};

use super::*;

const WAYS: [Way; 5] = [
    Way::IntoParts,
    Way::Config,
    Way::FreezeAndThaw,
    Way::Record,
    Way::RecordInBytes,
];

/// The fate of a group of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Group {
    GoesOn,
    /// The group ends, with a learning rate of zero: a record holds the sums, but not that more micro-batches follow.
    Ends,
}

impl Way {
    fn group(self) -> Group {
        match self {
            Way::IntoParts | Way::Config | Way::FreezeAndThaw => Group::GoesOn,
            Way::Record | Way::RecordInBytes => Group::Ends,
        }
    }
}

/// A training that accumulates in the state of an optimizer.
struct InState<R> {
    cell: Cell,
    optimizer: ElementWiseOptimizer<R>,
}

impl<R: AccumulateInState> InState<R> {
    fn fuse(&self, net: Net) -> FusedOptimizer<Net> {
        FusedOptimizer::accumulating_in_state_ok(net, self.optimizer.clone())
    }

    fn exchange(&self, way: Way, mut fused: FusedOptimizer<Net>) -> FusedOptimizer<Net> {
        let record = match way {
            Way::IntoParts | Way::Config => return way.fused(&self.cell, fused),
            Way::FreezeAndThaw => {
                fused.change_model_ok(freeze);
                fused.change_model_ok(Net::unfreeze);
                return fused;
            }
            Way::Record => fused.to_record(),
            Way::RecordInBytes => {
                OptimizerRecord::from_bytes(fused.to_record().into_bytes().unwrap()).unwrap()
            }
        };
        let mut resumed = self.fuse(fused.model());
        resumed.load_record_ok(record);
        resumed
    }

    /// A group of two; one of two with an exchange between them, as far as there is one; one of one.
    fn train(&self, group: Group, exchange: Option<Way>) -> (Net, States) {
        let loss = |net: &Net, batch: usize| net.loss(self.cell.batches[batch].clone());
        let mut fused = self.fuse(self.cell.net());
        fused.accumulate_ok(|net| loss(net, 0));
        fused.step_ok(RATE, |net| loss(net, 1));
        match group {
            Group::GoesOn => drop(fused.accumulate_ok(|net| loss(net, 2))),
            Group::Ends => drop(fused.step_ok(0.0, |net| loss(net, 2))),
        }
        if let Some(way) = exchange {
            fused = self.exchange(way, fused);
        }
        fused.step_ok(RATE, |net| loss(net, 3));
        fused.step_ok(RATE, |net| loss(net, 4));
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
            println!("{way:?}, {name}, {dtype:?}: {:?}", way.group());
            let exchanged = training.train(Group::GoesOn, Some(way));
            let expected = match way.group() {
                Group::GoesOn => training.train(Group::GoesOn, None),
                Group::Ends => training.train(Group::Ends, Some(way)),
            };
            assert_same(&expected, &exchanged);
        }
    }
}

#[test]
fn a_group_goes_on_where_its_state_is_the_same_and_ends_in_a_record() {
    let momentum = || Some(MomentumConfig::new());
    assert_kept("Sgd", SgdConfig::new().with_momentum(momentum()).build());
    assert_kept("Adam", AdamConfig::new().build());
    assert_kept("AdamW", AdamWConfig::new().with_amsgrad(true).build());
}
