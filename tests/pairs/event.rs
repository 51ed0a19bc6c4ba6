//! Events between two steps, or between two micro-batches.

use crate::model::Model;
use crate::options::{Clipping, Event, Moment, Options, Scaling};
use crate::training::{Training, freeze, thaw};
use crate::trial::{Trial, values_of};

use crate::common::*;

impl Trial {
    /// Runs the event in the middle. Returns `true` if training continues.
    pub fn event(&mut self) -> bool {
        let options = self.options;
        if !options.event_has_effect() {
            return true;
        }
        match options.event {
            Event::None => {}
            Event::Freeze => return self.change(freeze),
            Event::Record => self.replace(|training| training.recorded(&options)),
            Event::Checkpoint => self.replace(|training| training.saved(&options)),
            Event::Panic => {
                let batch = self.batch();
                self.training.panic(&batch);
            }
            Event::NotFinite => self.overflow(),
            Event::Keep => {
                let model = self.training.model();
                let values = values_of(&model);
                self.kept = Some((model, values));
            }
            Event::DryRun => {
                let batch = self.batch();
                self.training.dry_run(&batch, self.in_blocks);
            }
            Event::Parts => self.replace(|training| training.parts(&options)),
            Event::Thread => self.elsewhere = true,
            Event::Idle => self.is_idle = true,
            Event::Remove => return self.change(Model::without_norm),
            Event::Change => return self.change(|model| model),
            Event::Drop => {
                self.training.drop_accumulated();
                self.by_hand.drop_sum();
            }
        }
        true
    }

    fn replace(&mut self, next: impl FnOnce(Training) -> Training) {
        let plain = Options::of(&vec![0; Options::KINDS.len()]);
        let nothing = Training::new(&plain, Model::init(&plain)).unwrap();
        self.training = next(std::mem::replace(&mut self.training, nothing));
    }

    /// A frozen parameter of another type than the model computes in is refused.
    fn change(&mut self, change: fn(Model) -> Model) -> bool {
        let freezes = self.options.event == Event::Freeze;
        let changed = self.training.change_model(change);
        if freezes && self.options.compute_dtype().is_some() {
            assert_matches!(changed, Err(FusedError::ComputeDtype { .. }));
            return false;
        }
        changed.unwrap();
        self.by_hand.change_model(change);
        true
    }

    pub fn thaws(&mut self) -> bool {
        let frozen = self.options.moment == Moment::Between || !self.options.in_state();
        if frozen { self.change(thaw) } else { true }
    }

    /// Runs an additional step whose gradients overflow.
    fn overflow(&mut self) {
        let mut batch = self.batch();
        if let Some(last) = batch.pop() {
            batch.push(last.overflowing());
        }
        match (self.options.scaling, self.options.clipping) {
            (Scaling::None, Clipping::Exact | Clipping::ExactInBuffer) => {
                let ended = self.step_with(&batch);
                let says = |error: &FusedError| matches!(error, FusedError::NormNotFinite { .. });
                assert!(ended.as_ref().is_err_and(says), "{ended:?}");
                if self.options.clipping == Clipping::ExactInBuffer {
                    self.by_hand.fail_in_buffer(&batch);
                }
            }
            (Scaling::None, _) => unreachable!("the event has no effect"),
            _ => {
                let skips = self.options.scaling != Scaling::SkipParameter;
                self.step_with(&batch).unwrap();
                assert!(self.training.report().overflowed);
                self.by_hand.step(&batch, self.told());
                if skips {
                    self.by_hand.drop_sum();
                }
            }
        }
    }
}
