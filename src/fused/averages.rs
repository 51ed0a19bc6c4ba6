//! Averages of the weights.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, FloatDType};

use super::FusedOptimizer;
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::optim::WeightFormat;
use crate::policy::AverageKeeper;

/// Refuses averages in a type that a device on which they would be does not have.
pub(super) fn check_averages(config: &FusedConfig, devices: Vec<Device>) -> Result<(), FusedError> {
    let format = config.averaging.as_ref().map(|averaging| averaging.format);
    if let None | Some(WeightFormat::Plain) = format {
        return Ok(());
    }
    let host = config.offload.as_ref().map(|offload| offload.host.device());
    let mut devices = devices.into_iter().chain(host.transpose()?);
    match devices.all(|device| device.supports_dtype(FloatDType::BF16)) {
        true => Ok(()),
        false => Err(FusedError::Averaging {
            reason: "a device, or the host, does not have bf16, in which their `format` keeps averages: use \
                     `WeightFormat::Plain`",
        }),
    }
}

impl<M: Module> FusedOptimizer<M> {
    /// An ordinary Burn model with the [averages](crate::FusedConfig::averaging) of the weights in their places: to validate,
    /// to save, to use.
    ///
    /// Parameters of which there is no average (none is asked for, they are frozen, or none of their values has counted yet)
    /// have their current values. So have running statistics, which are shared with the model in training. Averages in
    /// bf16 are given in the type of the parameter.
    ///
    /// # Panics
    ///
    /// If a device that has a part of it is lost.
    pub fn averaged(&self) -> M {
        self.form.averaged()
    }

    /// Averages as the config says.
    pub(super) fn average(&self) {
        let config = self.config.averaging.clone().map(Arc::new);
        let homes = self.form.views().homes();
        homes.for_each(|home| home.average(config.as_ref()));
        self.restore_averages();
    }

    /// Gives averages a place in the optimizer's records, which has none in it.
    pub(super) fn make_place_for_averages(&self) {
        self.session.update().change(AverageKeeper::join);
    }

    /// Lets the optimizer's records hold the averages, which take over what it has loaded.
    pub(super) fn restore_averages(&self) {
        if self.policies.averages() {
            self.session.update().change(|mut optimizer| {
                let homes = self.form.views().homes();
                homes.for_each(|home| home.keep_average(&mut optimizer));
                optimizer
            });
        }
    }
}
