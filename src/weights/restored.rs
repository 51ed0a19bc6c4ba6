//! What a parameter has in an ordinary module.

use burn::tensor::{DType, Device, Tensor};

use super::terms::Terms;
use super::view::{Keeps, View};
use crate::tap::lift;

/// Which of its values a restored parameter has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'a> {
    /// That which rests, on the device of this rank if there are several.
    Rests,
    /// The same, or what says that it is gone.
    RestsOrGone,
    /// The same, where it rests.
    AtHome,
    /// The same on the host, which is this device.
    OnHost(&'a Device),
    /// That with which the model computes, unless it comes over for every use.
    Computes,
    /// The average of that which rests, on this device or where it rests.
    Averaged(Option<&'a Device>),
    /// The same as the model computes with it, unless it comes over for every use.
    AveragedComputes,
}

impl<const D: usize> View<D> {
    /// A value of it as an ordinary trainable parameter holds it.
    pub(super) fn leaf(&self, which: Which<'_>) -> Tensor<D> {
        let value = match which {
            Which::Rests => self.at_rest().unwrap_or_else(|reason| panic!("{reason}")),
            // Whatever has ended the pass is on its way: who reads a value that is gone is told.
            Which::RestsOrGone => {
                let value = self.at_rest();
                value.unwrap_or_else(|_| self.home.gone(&self.terms.device))
            }
            Which::AtHome => self.home.value(),
            Which::OnHost(host) => {
                let value = self.home_on(host);
                value.unwrap_or_else(|error| panic!("{error}"))
            }
            Which::Computes if self.terms.comes_over() => self.home.value(),
            Which::Computes => self.plain(Keeps::Nothing, None),
            Which::Averaged(None) => self.home.averaged(),
            Which::Averaged(Some(device)) => self.averaged_on(device, self.home.dtype),
            Which::AveragedComputes if self.terms.comes_over() => self.home.averaged(),
            Which::AveragedComputes => {
                let Terms { device, dtype, .. } = &self.terms;
                self.averaged_on(device, *dtype)
            }
        };
        lift(value, self.home.strategy).require_grad()
    }

    /// The value as it rests, on the device of this rank or on the host. Where it can't be had, a copy of it that is
    /// here.
    fn at_rest(&self) -> Result<Tensor<D>, String> {
        let home = &self.home;
        let device = match home.site().is_host {
            true => &home.site().device,
            false => &self.terms.device,
        };
        let state = self.state.lock();
        let copy = state
            .copy
            .as_ref()
            .filter(|copy| copy.value.dtype() == home.dtype && copy.value.device() == *device);
        if let Some(copy) = copy
            && copy.version == home.version()
        {
            return Ok(copy.value.clone());
        }
        let value = match home.find() {
            Some(_) => self.home_on(device).map_err(|error| error.to_string()),
            None => Err(home.is_gone()),
        };
        value.or_else(|reason| copy.map(|copy| copy.value.clone()).ok_or(reason))
    }

    /// The average on this device, in this type.
    fn averaged_on(&self, device: &Device, dtype: DType) -> Tensor<D> {
        let average = self.home.averaged();
        let carried = self.carried(average, device, dtype);
        carried.unwrap_or_else(|error| panic!("{error}"))
    }
}
