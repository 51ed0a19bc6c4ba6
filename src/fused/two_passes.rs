//! A step in two passes, for what must know all gradients before the first is used.

use std::sync::Arc;

use burn::module::Module;

use super::FusedOptimizer;
use super::run::Order;
use crate::device::is_cubecl;
use crate::error::FusedError;
use crate::pass::Rehearsal;
use crate::policy::{Goal, LossScaler, Plan};
use crate::random::Stream;
use crate::slot::KeptStatistics;
use crate::tap::sweep;

/// Times that the two passes of a step begin anew since other threads draw random numbers.
const ATTEMPTS: usize = 5;

impl<M: Module> FusedOptimizer<M> {
    /// First all gradients are measured, then they are used; once more from the start if another thread
    /// has drawn random numbers in between.
    pub(super) fn two_passes<R>(
        &mut self,
        mut run: impl FnMut(&mut Self, Order) -> Result<R, FusedError>,
    ) -> Result<R, FusedError> {
        let devices = match self.session.membership() {
            Some(member) => member.group.devices().to_vec(),
            None => self.form.module.devices(),
        };
        let random = Stream::new(devices, |device| self.session.next_seed(device));
        let reads = !random.devices.iter().any(is_cubecl);
        let mut attempts = 0..ATTEMPTS;
        loop {
            let rehearsal = Arc::new(Rehearsal::new(random.clone(), reads));
            match self.rehearsed(&rehearsal, &mut run) {
                Err(FusedError::RandomNumbers { .. })
                    if reads && !rehearsal.is_used() && attempts.next().is_some() =>
                {
                    random.devices.iter().for_each(sweep);
                }
                ended => return ended,
            }
        }
    }

    fn rehearsed<R>(
        &mut self,
        rehearsal: &Arc<Rehearsal>,
        run: &mut impl FnMut(&mut Self, Order) -> Result<R, FusedError>,
    ) -> Result<R, FusedError> {
        let ranks = self
            .session
            .membership()
            .is_some_and(|m| m.group.ranks() > 1);
        let order = |plan: &Plan| {
            if !ranks {
                rehearsal.start();
            }
            Order {
                plan: plan.clone(),
                rehearsal: Some(rehearsal.clone()),
            }
        };
        let plan = self.policies.plan(Goal::Measure, None);
        let output = {
            let _statistics = KeptStatistics::of(&self.form.module);
            run(self, order(&plan))?
        };
        let before = std::mem::take(&mut self.unconfirmed);
        let norm = plan.norm_and_confirm(&before)?;
        let (norm, agree) = norm.expect("the pass measures");
        if !agree {
            return Err(FusedError::other_passes_before());
        }
        if let Some(path) = norm.not_finite {
            let scaling = self.policies.scaling();
            if !scaling.is_some_and(LossScaler::can_back_off) {
                self.drop_accumulated_if_not_finite();
                let norm = norm.value;
                return Err(FusedError::NormNotFinite { norm, path });
            }
            self.drop_accumulated();
            self.report.overflowed = true;
            self.end_step(&plan, None, Some(norm.value));
            return Ok(output);
        }
        let clipping = self.policies.clipping();
        let coefficient = clipping.and_then(|clipping| clipping.coefficient(norm.value));
        let value = norm.value;
        let mut plan = self.policies.plan(Goal::Update, coefficient);
        if !rehearsal.reads() {
            plan = plan.comparing_later(norm);
        } else if ranks || rehearsal.draws() {
            plan = plan.comparing(norm);
        }
        let statistics = Some(KeptStatistics::of(&self.form.module));
        let output = run(self, order(&plan));
        match &output {
            Err(FusedError::RandomNumbers { .. }) => drop(statistics),
            // Whatever came of it, the forward pass has updated them.
            _ => statistics.into_iter().for_each(KeptStatistics::forget),
        }
        let output = output?;
        self.unconfirmed = rehearsal.unconfirmed();
        plan.leave(&mut self.unconfirmed);
        self.end_step(&plan, coefficient, Some(value));
        Ok(output)
    }
}
