//! A home, whatever the rank of its parameter.

use std::any::Any;
use std::sync::Arc;

use burn::optim::ModuleOptimizer;

use super::home::Home;
use super::stage::Accumulated;
use crate::device::sent;
use crate::memory::{self, Category};
use crate::optim::{Average, WeightAveragingConfig};
use crate::policy::{self, AverageKeeper};

/// The home of a parameter of any rank: what is asked of all of them between passes.
pub(crate) trait AnyHome: Any {
    /// What the passes so far have left for an update.
    fn left(&self) -> Accumulated;

    /// Forgets the sum of gradients. Those that the state of the optimizer holds stay.
    fn drop_sum(&self);

    /// The optimizer has another state: forgets all that was accumulated, there too.
    fn forget_group(&self);

    /// The state of the optimizer holds gradients of a group that has not ended.
    fn begin_group(&self);

    /// Takes over what another home of the same parameter has accumulated.
    fn take_over_sum(&self, from: &dyn AnyHome);

    /// Goes on with the average that another home of the same parameter has.
    fn take_over_average(&self, from: &dyn AnyHome);

    /// Whether all elements of the sum of gradients are finite, if there is one; waits for the device.
    fn sum_is_finite(&self) -> bool;

    /// Shows the value to a memory recorder.
    fn show(&self);

    /// Averages as `config` says from now on, if it covers the parameter; goes on with what there is.
    fn average_as(&self, config: Option<&Arc<WeightAveragingConfig>>);

    /// Lets `optimizer`, which has a place for averages, hold the average, and show it in its records, or none if none is
    /// asked for. The average takes over what it has loaded.
    fn keep_average(&self, optimizer: &mut ModuleOptimizer);
}

impl<const D: usize> AnyHome for Home<D> {
    fn left(&self) -> Accumulated {
        self.state.lock().accumulated.without_sum()
    }

    fn drop_sum(&self) {
        if let Accumulated::Sum(()) | Accumulated::Overwritten = self.left() {
            self.forget_group();
        }
    }

    fn forget_group(&self) {
        self.state.lock().accumulated = Accumulated::Nothing;
    }

    fn begin_group(&self) {
        self.state.lock().accumulated = Accumulated::InOptimizerState;
    }

    fn take_over_sum(&self, from: &dyn AnyHome) {
        let Some(from) = of_rank::<D>(from) else {
            return;
        };
        let accumulated = from.state.lock().accumulated.clone();
        self.state.lock().accumulated = match accumulated {
            Accumulated::Sum(sum) => Accumulated::Sum(Box::new(sent(*sum, &self.ground.sums))),
            other => other,
        };
    }

    fn take_over_average(&self, from: &dyn AnyHome) {
        if let Some(from) = of_rank::<D>(from) {
            self.state.lock().average = from.average();
        }
    }

    fn sum_is_finite(&self) -> bool {
        match &self.state.lock().accumulated {
            Accumulated::Sum(sum) => policy::is_finite(sum),
            _ => true,
        }
    }

    fn show(&self) {
        if let Some(value) = &self.state.lock().value {
            memory::show(Category::Parameter, value);
        }
    }

    fn average_as(&self, config: Option<&Arc<WeightAveragingConfig>>) {
        let mut state = self.state.lock();
        let before = state.average.take();
        let config = config.filter(|config| config.covers(&self.path));
        state.average = config.map(|config| Average::new(config, before));
    }

    fn keep_average(&self, optimizer: &mut ModuleOptimizer) {
        let device = &self.site().device;
        match self.average() {
            Some(average) => AverageKeeper::restore(optimizer, self.id, average.state(), device),
            None => AverageKeeper::forget::<D>(optimizer, self.id, device),
        }
    }
}

/// A home of a parameter of rank `D`, if it is one.
fn of_rank<const D: usize>(home: &dyn AnyHome) -> Option<&Home<D>> {
    (home as &dyn Any).downcast_ref()
}
