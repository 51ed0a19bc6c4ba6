//! Every optimizer in every float type, converted in every way: the next steps equal those of stock Burn to the bit.
//! Every cell of the table has a promise. If Burn itself loses something, the cell names the reason. The memory of
//! conversions is tested in `tests/memory/exchange.rs`.

mod begun;
pub mod optimizers;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::*;
use optimizers::{Named, Recorded};

const RATE: f64 = 1e-2;
pub const TYPES: [FloatDType; 3] = [FloatDType::F32, FloatDType::BF16, FloatDType::F64];

type States = BTreeMap<String, Vec<u8>>;

/// The way in which a training is converted. (`learner::exchange` tests a checkpoint of Burn's `Learner`.)
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    IntoParts,
    /// Creates the training again with a config.
    Config,
    FreezeAndThaw,
    Record,
    RecordInBytes,
}

/// The steps after a conversion.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Promise {
    /// The steps without the conversion.
    Undisturbed,
    /// The steps of stock Burn after the same conversion, which differ from those without it.
    AsStock(&'static str),
    /// A panic, as in stock Burn after the same conversion.
    Panic(&'static str),
    /// The optimizer refuses the parameter before the first step.
    Refused(&'static str),
}

const WAYS: [Way; 5] = [
    Way::IntoParts,
    Way::Config,
    Way::FreezeAndThaw,
    Way::Record,
    Way::RecordInBytes,
];

impl Way {
    fn promise(self, optimizer: &Named, dtype: FloatDType) -> Promise {
        use Promise::*;
        if let Some(reason) = optimizer.refuses(dtype) {
            return Refused(reason);
        }
        match (self, optimizer.recorded, dtype) {
            (Way::IntoParts | Way::Config, ..) => Undisturbed,
            (Way::FreezeAndThaw, ..) => AsStock("what is frozen misses a step"),
            (_, Recorded::Stateless, _) => Undisturbed,
            (_, Recorded::InPart, _) => AsStock("the optimizer's own record leaves something out"),
            (_, _, FloatDType::F32) => Undisturbed,
            (_, Recorded::HalvesInF32, FloatDType::BF16) => Undisturbed,
            (_, Recorded::InF32 | Recorded::HalvesInF32, _) => {
                Panic("Burn loads f32, and its optimizers mix no types")
            }
            (_, Recorded::ThroughF32, FloatDType::F64) => AsStock("Burn loads f64 as f32"),
            (_, Recorded::ThroughF32, _) => Undisturbed,
        }
    }

    /// The exchange in a fused training.
    fn fused(self, cell: &Cell, mut fused: FusedOptimizer<Net>) -> FusedOptimizer<Net> {
        match self {
            Way::IntoParts => {
                let (model, optimizer) = fused.into_parts();
                FusedOptimizer::new(model, optimizer).unwrap()
            }
            Way::Config => fused.with_config(FusedConfig::new()).unwrap(),
            Way::FreezeAndThaw => {
                fused.change_model(freeze).unwrap();
                cell.steps(&mut fused, 4..5);
                fused.change_model(Net::unfreeze).unwrap();
                fused
            }
            Way::Record => cell.resumed(fused.model(), fused.to_record()),
            Way::RecordInBytes => cell.resumed(fused.model(), reread(fused.to_record())),
        }
    }

    /// Trains with Burn alone.
    fn stock(
        self,
        cell: &Cell,
        net: Net,
        mut optimizer: ModuleOptimizer,
    ) -> (Net, ModuleOptimizer) {
        match self {
            Way::IntoParts | Way::Config => (net, optimizer),
            Way::FreezeAndThaw => {
                let net = cell.stock_steps(freeze(net), &mut optimizer, 4..5);
                (net.unfreeze(), optimizer)
            }
            Way::Record | Way::RecordInBytes => (
                net,
                cell.optimizer.clone().load_record(optimizer.to_record()),
            ),
        }
    }
}

fn freeze(net: Net) -> Net {
    net.freeze_group(ParamGroup::from_predicate("first"))
}

/// A model with weights that are large enough for every format.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    second: Linear,
}

impl Net {
    fn init(dtype: FloatDType) -> Self {
        let device = flex();
        let net = Self {
            first: LinearConfig::new(61, 71).init(&device),
            second: LinearConfig::new(71, 64).init(&device),
        };
        cast(net, dtype).unwrap()
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let hidden = self.first.forward(x).tanh();
        self.second.forward(hidden).powi_scalar(2).sum()
    }
}

/// One optimizer in one float type.
struct Cell {
    /// Without a state.
    optimizer: ModuleOptimizer,
    dtype: FloatDType,
    initial: Net,
    batches: Vec<Tensor<2>>,
}

impl Cell {
    fn new(optimizer: ModuleOptimizer, dtype: FloatDType) -> Self {
        let device = Device::flex();
        let batch = |_| Tensor::<2>::random([5, 61], Distribution::Default, &device).cast(dtype);
        Self {
            optimizer,
            dtype,
            initial: Net::init(dtype),
            batches: (0..5).map(batch).map(Tensor::from_inner).collect(),
        }
    }

    fn net(&self) -> Net {
        copy(&self.initial, || Net::init(self.dtype))
    }

    fn resumed(&self, net: Net, record: OptimizerRecord) -> FusedOptimizer<Net> {
        let mut fused = FusedOptimizer::new(net, self.optimizer.clone()).unwrap();
        fused.load_record(record).unwrap();
        fused
    }

    fn steps(&self, fused: &mut FusedOptimizer<Net>, batches: std::ops::Range<usize>) {
        let batches = &self.batches[batches];
        train_fused(fused, batches.len(), RATE, |net, step| {
            net.loss(batches[step].clone())
        });
    }

    fn stock_steps(
        &self,
        net: Net,
        optimizer: &mut ModuleOptimizer,
        batches: std::ops::Range<usize>,
    ) -> Net {
        let batches = &self.batches[batches];
        let loss = |net: &Net, step: usize| net.loss(batches[step].clone());
        train_stock(net, optimizer, batches.len(), RATE, loss)
    }

    /// Two steps, the exchange, two steps: the model, and the states as Burn records them.
    fn fused(&self, exchange: Option<Way>) -> (Net, States) {
        let mut fused = FusedOptimizer::new(self.net(), self.optimizer.clone()).unwrap();
        self.steps(&mut fused, 0..2);
        if let Some(way) = exchange {
            fused = way.fused(self, fused);
        }
        self.steps(&mut fused, 2..4);
        (fused.model(), states(fused.to_record()))
    }

    /// Trains with Burn alone.
    fn stock(&self, exchange: Option<Way>) -> (Net, States) {
        let mut optimizer = self.optimizer.clone();
        let mut net = self.stock_steps(self.net(), &mut optimizer, 0..2);
        if let Some(way) = exchange {
            (net, optimizer) = way.stock(self, net, optimizer);
        }
        let net = self.stock_steps(net, &mut optimizer, 2..4);
        (net, states(optimizer.to_record()))
    }
}

/// The tensors and scalars in a record, by parameter and name.
fn states(record: OptimizerRecord) -> States {
    let reader = burn_pack::Reader::from_bytes(record.into_bytes().unwrap()).unwrap();
    let scalars = reader.scalars().clone().into_iter();
    let scalars = scalars.map(|(name, scalar)| (name, format!("{scalar:?}").into_bytes()));
    let mut states: States = scalars.collect();
    for tensor in reader.into_tensors().unwrap() {
        let name = format!("{:?} {}", tensor.param_id, tensor.name);
        states.insert(name, tensor.to_bytes().unwrap().to_vec());
    }
    states
}

#[track_caller]
fn assert_same((stock, states): &(Net, States), (fused, fused_states): &(Net, States)) {
    assert_equal_weights(stock, fused);
    assert!(states.keys().eq(fused_states.keys()));
    for ((name, stock), (_, fused)) in states.iter().zip(fused_states) {
        assert!(stock == fused, "the state {name} differs");
    }
}

/// Panics unless stock Burn and fused training panic with the same first line, in which fused training also names the parameter: each may
/// step another parameter first.
#[track_caller]
fn assert_same_panic<R, S>(stock: impl FnOnce() -> R, fused: impl FnOnce() -> S) {
    let (stock, fused) = (panic_of(stock), panic_of(fused));
    assert_says(&fused, stock.lines().next().unwrap());
}

#[test]
fn every_optimizer_is_exchanged_as_documented() {
    for optimizer in optimizers::all() {
        for dtype in TYPES {
            let cell = Cell::new((optimizer.make)(), dtype);
            let undisturbed = catch_unwind(AssertUnwindSafe(|| cell.stock(None)));
            for way in WAYS {
                let promise = way.promise(&optimizer, dtype);
                println!("{way:?}, {}, {dtype:?}: {promise:?}", optimizer.name);
                if matches!(promise, Promise::Refused(_)) {
                    assert_same_panic(|| cell.stock(None), || cell.fused(None));
                    continue;
                }
                let undisturbed = undisturbed.as_ref().expect("stock trains");
                match promise {
                    Promise::Undisturbed => assert_same(undisturbed, &cell.fused(Some(way))),
                    Promise::AsStock(_) => {
                        let stock = cell.stock(Some(way));
                        assert_same(&stock, &cell.fused(Some(way)));
                        // The reason still exists.
                        let same = weights(&stock.0) == weights(&undisturbed.0);
                        assert!(!same || stock.1 != undisturbed.1, "nothing is lost");
                    }
                    Promise::Panic(_) | Promise::Refused(_) => {
                        assert_same(undisturbed, &cell.fused(None));
                        assert_same_panic(|| cell.stock(Some(way)), || cell.fused(Some(way)));
                    }
                }
            }
        }
    }
}
