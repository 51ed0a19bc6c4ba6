//! The average of a parameter, beside its value at home.

use std::sync::Arc;

use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;

use super::home::Home;
use crate::device::moved;
use crate::optim::{Averaged, WeightAveragingConfig};
use crate::policy::AverageKeeper;

/// An average in the making.
#[derive(Clone, Debug)]
pub(super) struct Averaging<const D: usize> {
    config: Arc<WeightAveragingConfig>,
    average: Averaged<D>,
}

/// What is asked of the average of a parameter of any rank.
pub(crate) trait AnyAverage {
    /// Averages as `config` says from now on, if it covers the parameter; goes on with what there is.
    fn average(&self, config: Option<&Arc<WeightAveragingConfig>>);

    /// Lets `optimizer`, which has a place for averages, hold the average, if there is one, and show it in its records. The
    /// average takes over what it has loaded.
    fn keep_average(&self, optimizer: &mut ModuleOptimizer);
}

impl<const D: usize> AnyAverage for Home<D> {
    fn average(&self, config: Option<&Arc<WeightAveragingConfig>>) {
        let mut state = self.state.lock();
        let before = state.averaging.take();
        let config = config.filter(|config| config.covers(&self.path));
        state.averaging = config.map(|config| Averaging {
            config: config.clone(),
            average: before.map(|before| before.average).unwrap_or_default(),
        });
    }

    fn keep_average(&self, optimizer: &mut ModuleOptimizer) {
        let averaging = self.state.lock().averaging.clone();
        if let Some(Averaging { average, .. }) = averaging {
            AverageKeeper::restore(optimizer, self.id, &average, &self.site.device);
        }
    }
}

impl<const D: usize> Averaging<D> {
    /// Takes note of the value after an update.
    pub(super) fn update(&self, value: &Tensor<D>) {
        self.average.update(&self.config, value);
    }
}

impl<const D: usize> Home<D> {
    /// The average, where the value rests and in its type; the value while there is none.
    pub(super) fn averaged(&self) -> Tensor<D> {
        let averaging = self.state.lock().averaging.clone();
        let average = averaging.and_then(|averaging| averaging.average.mean(self.dtype()));
        match average {
            Some(average) => moved(average, &self.site.device),
            None => self.value(),
        }
    }

    /// Goes on with the average that another home of the same parameter has.
    pub(super) fn take_over_average(&self, from: &Self) {
        let averaging = from.state.lock().averaging.clone();
        self.state.lock().averaging = averaging;
    }
}
