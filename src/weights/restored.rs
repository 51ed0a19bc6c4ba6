//! What a parameter has in an ordinary module.

use burn::tensor::Device;

use super::copy::Keeps;
use super::view::View;
use crate::parameters::AnyTensor;

/// Which of its values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    Current,
    /// The average; without averaging, the current value.
    Averaged,
}

/// Where it is, and in which type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// As it rests, and where.
    Home,
    /// As it rests, on the device of this rank, or on the host if something waits there.
    Ordinary,
    /// As the model computes with it. What comes over for every use is at home.
    Computing,
}

impl View {
    /// A value of it as an ordinary trainable parameter holds it.
    ///
    /// # Panics
    ///
    /// If it can't be had.
    pub(super) fn leaf(&self, value: Value, place: Place) -> AnyTensor {
        let Self { device, dtype, .. } = self;
        let home = &self.home;
        let carried = |device, dtype| {
            let carried = self.carried(home.averaged(), device, dtype);
            carried.map_err(|error| error.to_string())
        };
        let found = match (value, place) {
            (Value::Current, Place::Ordinary) => self.at_rest(self.ordinary_device()),
            (Value::Averaged, Place::Ordinary) => carried(self.ordinary_device(), home.dtype),
            (Value::Current, Place::Computing) if !self.comes_over() => {
                Ok(self.plain(Keeps::Nothing))
            }
            (Value::Averaged, Place::Computing) if !self.comes_over() => carried(device, *dtype),
            (Value::Current, _) => Ok(home.value()),
            (Value::Averaged, _) => Ok(home.averaged()),
        };
        let found = found.unwrap_or_else(|reason| panic!("{reason}"));
        self.constant_of(found).untyped().require_grad().into()
    }

    /// Where the value of an ordinary module is, without autodiff.
    fn ordinary_device(&self) -> &Device {
        let placement = self.layout.placement.as_ref();
        placement.map_or(&self.device, |placement| &placement.host)
    }

    /// The value as it rests, where the model computes, or what says that it is gone: whatever has ended the pass is on its way,
    /// and who reads it is told.
    pub(super) fn leaf_or_gone(&self) -> AnyTensor {
        let device = &self.device;
        let value = self.at_rest(device);
        let value = value.unwrap_or_else(|_| self.home.gone(device));
        self.constant_of(value).untyped().require_grad().into()
    }

    /// The value as it rests, on this device. Where it can't be had, a copy of it that is there.
    fn at_rest(&self, device: &Device) -> Result<AnyTensor, String> {
        let home = &self.home;
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
            Some(value) => {
                let carried = self.carried(value, device, home.dtype);
                carried.map_err(|error| error.to_string())
            }
            None => Err(home.is_gone()),
        };
        value.or_else(|reason| copy.map(|copy| copy.value.clone()).ok_or(reason))
    }
}
