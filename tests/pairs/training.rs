//! The fused training, and the events between its steps.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::by_hand::RATE;
use crate::common::*;
use crate::in_state::in_state;
use crate::model::{Batch, Model, device};
use crate::options::{Options, Stepped};

/// A training through one of the front ends.
pub enum Training {
    One(Box<FusedOptimizer<Model>>),
    Several(Box<FusedReplicas<Model>>),
}

/// Calls a method of either front end.
macro_rules! either {
    ($training:expr, $trainer:ident => $work:expr) => {
        match $training {
            Training::One($trainer) => $work,
            Training::Several($trainer) => $work,
        }
    };
}

fn hook_of(options: Options) -> impl GradientHook {
    hook(move |it| match it.path {
        path if options.vetoes(path) => Answer::Veto,
        path if options.halves(path) => Answer::Scale(0.5),
        _ => Answer::Use,
    })
}

impl Training {
    pub fn new(options: &Options, model: Model) -> Result<Self, FusedError> {
        let (hook, all) = (hook_of(*options), ParamGroup::all());
        let ranks = options.devices.ranks();
        let training = if ranks == 1 {
            let fused = match options.in_state() {
                true => in_state(options, model)?,
                false => FusedOptimizer::new(model, options.optimizer())?,
            };
            Self::One(Box::new(fused.with_hook(all, hook)))
        } else {
            let devices = vec![device(); ranks];
            let fused = match (options.in_state(), options.stepped) {
                (false, _) => FusedReplicas::new(model, options.optimizer(), devices)?,
                (true, Stepped::AdamW | Stepped::AdamW8 | Stepped::AdamW4) => {
                    FusedReplicas::accumulating_in_state(model, options.adamw().build(), devices)?
                }
                (true, _) => {
                    FusedReplicas::accumulating_in_state(model, options.sgd().build(), devices)?
                }
            };
            Self::Several(Box::new(fused.with_hook(all, hook)))
        };
        let config = options.config();
        Ok(match training {
            Self::One(fused) => Self::One(Box::new(fused.with_config(config)?)),
            Self::Several(fused) => Self::Several(Box::new(fused.with_config(config)?)),
        })
    }

    pub fn config(&self) -> FusedConfig {
        either!(self, fused => fused.config().clone())
    }

    pub fn model(&self) -> Model {
        either!(self, fused => fused.model())
    }

    pub fn averaged(&self) -> Model {
        either!(self, fused => fused.averaged())
    }

    pub fn report(&self) -> StepReport {
        either!(self, fused => fused.last_step().clone())
    }

    pub fn drop_accumulated(&mut self) {
        either!(self, fused => fused.drop_accumulated());
    }

    pub fn change_model(&mut self, change: impl FnOnce(Model) -> Model) -> Result<(), FusedError> {
        either!(self, fused => fused.change_model(change))
    }

    pub fn add(&mut self, batches: &[Batch], in_blocks: bool) -> Result<(), FusedError> {
        match self {
            Self::One(fused) => fused
                .accumulate(|model| model.loss(&batches[0], in_blocks))
                .map(drop),
            Self::Several(fused) => fused
                .accumulate(batches.to_vec(), move |model, batch| {
                    model.loss(&batch, in_blocks)
                })
                .map(drop),
        }
    }

    pub fn step(&mut self, batches: &[Batch], in_blocks: bool) -> Result<(), FusedError> {
        match self {
            Self::One(fused) => fused
                .step_repeatable(RATE, |model| model.loss(&batches[0], in_blocks))
                .map(drop),
            Self::Several(fused) => fused
                .step_repeatable(RATE, batches.to_vec(), move |model, batch| {
                    model.loss(&batch, in_blocks)
                })
                .map(drop),
        }
    }

    pub fn panic(&mut self, batches: &[Batch]) {
        let panics = |batch: &Batch| -> Tensor<1> { panic!("in the closure, with {batch:?}") };
        let ended = match self {
            Self::One(fused) => catch_unwind(AssertUnwindSafe(|| {
                fused
                    .step_repeatable(RATE, |_| panics(&batches[0]))
                    .unwrap();
            }))
            .is_err(),
            Self::Several(fused) => {
                let ended =
                    fused.step_repeatable(RATE, batches.to_vec(), move |_, batch| panics(&batch));
                ended.is_err()
            }
        };
        assert!(ended, "a panic in the closure ends the step");
    }

    /// Returns another training that continues from a record of this one.
    pub fn recorded(self, options: &Options) -> Self {
        let model = copy(&self.model(), || Model::init(options));
        let mut next = Self::new(options, model).unwrap();
        let record = either!(&self, fused => fused.to_record());
        either!(&mut next, fused => fused.load_record(record).unwrap());
        next
    }

    /// Converts the training through a checkpoint.
    pub fn saved(self, options: &Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::at(folder.path());
        let progress = Progress::new(3);
        either!(&self, fused => checkpoint.save(&**fused, &progress)).unwrap();
        let mut next = Self::new(options, Model::init(options)).unwrap();
        let loaded: Progress = either!(&mut next, fused => checkpoint.load(&mut **fused)).unwrap();
        assert_eq!(loaded.step, 3);
        next
    }

    /// Takes the training apart into model and optimizer, and fuses them again.
    pub fn parts(self, options: &Options) -> Self {
        let config = self.config();
        let hook = (ParamGroup::all(), hook_of(*options));
        match self {
            Self::One(fused) => {
                let (model, optimizer) = fused.into_parts();
                let fused = FusedOptimizer::new(model, optimizer).unwrap();
                Self::One(Box::new(
                    fused
                        .with_hook(hook.0, hook.1)
                        .with_config_on(config, &device())
                        .unwrap(),
                ))
            }
            Self::Several(fused) => {
                let (model, optimizer) = fused.into_parts();
                let devices = vec![device(); options.devices.ranks()];
                let fused = FusedReplicas::new(model, optimizer, devices).unwrap();
                let fused = fused.with_hook(hook.0, hook.1).with_config(config).unwrap();
                Self::Several(Box::new(fused))
            }
        }
    }

    pub fn dry_run(&mut self, batches: &[Batch], in_blocks: bool) {
        if let Self::One(fused) = self {
            fused
                .dry_run(|model| model.loss(&batches[0], in_blocks))
                .unwrap();
        }
    }

    /// Runs `work` on another thread. Burn keeps the last update of running statistics of each thread pending.
    pub fn elsewhere<R: Send>(&mut self, work: impl FnOnce(&mut Self) -> R + Send) -> R {
        self.model().statistics();
        let work = || {
            let done = work(self);
            self.model().statistics();
            done
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }
}

pub fn freeze(model: Model) -> Model {
    model.freeze_group(ParamGroup::from_predicate("seldom"))
}

pub fn thaw(model: Model) -> Model {
    model.unfreeze_group(ParamGroup::from_predicate("seldom"))
}
