//! Some steps of a training with an event in the middle, compared with the same steps by hand.

use crate::by_hand::ByHand;
use crate::common::*;
use crate::model::{Batch, Model, batches, device};
use crate::options::{Blocks, Event, Moment, Numbers, Options, Stepped, Waiting};
use crate::refusals::refusals;
use crate::training::Training;

#[derive(Debug)]
pub enum Ended {
    Well,
    Refused,
}

const UPDATES: usize = 3;

/// Trains, and panics if the result differs from that by hand.
pub fn run(options: &Options) -> Ended {
    device().seed(7);
    let initial = Model::init(options);
    let twin = || copy(&initial, || Model::init(options));
    let refusals = refusals(options);
    match Training::new(options, twin()) {
        Ok(training) if refusals.is_empty() => Trial::new(options, training, twin()).run(),
        Ok(_) => panic!("not refused: {refusals:?}"),
        Err(error) => {
            let error = error.to_string();
            let is_expected = refusals.iter().any(|says| error.contains(says));
            assert!(is_expected, "refused ({refusals:?}): {error}");
            Ended::Refused
        }
    }
}

pub struct Trial {
    pub options: Options,
    pub training: Training,
    pub by_hand: ByHand,
    batches: std::vec::IntoIter<Batch>,
    pub in_blocks: bool,
    pub kept: Option<(Model, Vec<(String, TensorData)>)>,
    pub elsewhere: bool,
    /// Returns `true` if the last of several ranks has no batch.
    pub is_idle: bool,
}

impl Trial {
    fn new(options: &Options, training: Training, model: Model) -> Self {
        Self {
            options: *options,
            training,
            by_hand: ByHand::new(*options, model),
            batches: batches(80).into_iter(),
            in_blocks: options.blocks != Blocks::None,
            kept: None,
            elsewhere: false,
            is_idle: false,
        }
    }

    pub fn batch(&mut self) -> Vec<Batch> {
        let idle = usize::from(self.is_idle).min(self.options.devices.ranks() - 1);
        let ranks = self.options.devices.ranks() - idle;
        self.batches.by_ref().take(ranks).collect()
    }

    fn run(mut self) -> Ended {
        if self.is_near() {
            self.by_hand.policy.tolerance = self.tolerance();
        }
        for update in 0..UPDATES {
            let at = |moment| update == 1 && self.options.moment == moment;
            let (between, within) = (at(Moment::Between), at(Moment::Within));
            if between && !self.event() {
                return Ended::Refused;
            }
            if update == 2 && self.options.event == Event::Freeze && !self.thaws() {
                return Ended::Refused;
            }
            for _ in 1..self.options.micro_batches() {
                self.add();
            }
            if within && !self.event() {
                return Ended::Refused;
            }
            self.step();
            self.is_idle = false;
            self.compare();
        }
        if let Some((model, values)) = &self.kept {
            assert_eq!(values_of(model), *values, "a kept clone has changed");
        }
        Ended::Well
    }

    pub fn told(&self) -> Option<f64> {
        self.training.report().gradient_norm
    }

    fn add(&mut self) {
        let batch = self.batch();
        self.training.add(&batch, self.in_blocks).unwrap();
        self.by_hand.add(&batch, self.told());
    }

    fn step(&mut self) {
        let batch = self.batch();
        self.step_with(&batch).unwrap();
        self.by_hand.step(&batch, self.told());
    }

    pub fn step_with(&mut self, batch: &[Batch]) -> Result<(), FusedError> {
        let in_blocks = self.in_blocks;
        match self.elsewhere {
            true => self
                .training
                .elsewhere(|training| training.step(batch, in_blocks)),
            false => self.training.step(batch, in_blocks),
        }
    }

    fn compare(&self) {
        let (stock, fused) = (&self.by_hand.model, self.training.model());
        let bits = |model: &Model| -> Vec<_> {
            model
                .statistics()
                .into_iter()
                .map(|it| it.into_data())
                .collect()
        };
        let (of_stock, of_fused) = (bits(stock), bits(&fused));
        assert!(
            self.is_near() || of_stock == of_fused,
            "running statistics: {of_stock:?}, fused {of_fused:?}"
        );
        self.assert_equal(stock, &fused);
        self.assert_equal(&self.by_hand.averaged(), &self.training.averaged());
    }

    /// Returns `true` if another backend computes values that are rounded differently.
    fn is_near(&self) -> bool {
        let on_host = matches!(
            self.options.waiting,
            Waiting::Updates | Waiting::Weights | Waiting::HalfOfWeights
        );
        let sums = matches!(self.options.stepped, Stepped::Muon | Stepped::Groups);
        sums && on_host
    }

    /// Returns the tolerance of values that another backend computes. In half types a difference of rounding is large.
    fn tolerance(&self) -> f64 {
        match self.options.numbers {
            Numbers::F32 | Numbers::F64 | Numbers::F64InF32 => 1e-5,
            _ => 1e-2,
        }
    }

    fn assert_equal(&self, stock: &Model, fused: &Model) {
        if self.is_near() {
            let tolerance = self.tolerance();
            assert_near_weights(stock, fused, tolerance, tolerance);
        } else {
            assert_equal_weights(stock, fused);
        }
    }
}

/// Returns all values except running statistics, which clones of a model share.
pub fn values_of(model: &Model) -> Vec<(String, TensorData)> {
    let mut values = weights(model);
    values.retain(|(path, _)| !path.contains("running"));
    values
}
