//! What a parameter has in an ordinary module.

use burn::tensor::Device;

use super::copy::CacheUntil;
use super::local_param::LocalParam;
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
pub(crate) enum ExportLocation {
    /// As it rests, and where.
    Stored,
    /// As it rests, on the device of this rank, or on the host if something waits there.
    Ordinary,
    /// As the model computes with it. What comes over for every use is at home.
    Computing,
}

impl LocalParam {
    /// A value of it as an ordinary trainable parameter holds it.
    ///
    /// # Panics
    ///
    /// If it can't be had.
    pub(super) fn leaf(&self, value: Value, place: ExportLocation) -> AnyTensor {
        let Self { device, dtype, .. } = self;
        let master = &self.master;
        let transfer = |device, dtype| {
            let transfer = self.transfer(master.averaged(), device, dtype);
            transfer.map_err(|error| error.to_string())
        };
        let found = match (value, place) {
            (Value::Current, ExportLocation::Ordinary) => self.stored_on(self.export_device()),
            (Value::Averaged, ExportLocation::Ordinary) => {
                transfer(self.export_device(), master.dtype)
            }
            (Value::Current, ExportLocation::Computing) if !self.is_fetched_on_read() => {
                Ok(self.plain(CacheUntil::GraphDropped))
            }
            (Value::Averaged, ExportLocation::Computing) if !self.is_fetched_on_read() => {
                transfer(device, *dtype)
            }
            (Value::Current, _) => Ok(master.value()),
            (Value::Averaged, _) => Ok(master.averaged()),
        };
        let found = found.unwrap_or_else(|reason| panic!("{reason}"));
        self.constant_of(found).untyped().require_grad().into()
    }

    /// Where the value of an ordinary module is, without autodiff.
    fn export_device(&self) -> &Device {
        let engine = self.context.engine.as_ref();
        engine.map_or(&self.device, |engine| &engine.host)
    }

    /// The value as it rests, where the model computes, or what says that it is gone: whatever has ended the pass is on its way,
    /// and who reads it is told.
    pub(super) fn leaf_or_missing(&self) -> AnyTensor {
        let device = &self.device;
        let value = self.stored_on(device);
        let value = value.unwrap_or_else(|_| self.master.missing_value(device));
        self.constant_of(value).untyped().require_grad().into()
    }

    /// The value as it rests, on this device. Where it can't be had, a copy of it that is there.
    fn stored_on(&self, device: &Device) -> Result<AnyTensor, String> {
        let master = &self.master;
        let state = self.state.lock();
        let copy = state
            .copy
            .as_ref()
            .filter(|copy| copy.value.dtype() == master.dtype && copy.value.device() == *device);
        if let Some(copy) = copy
            && copy.version == master.version()
        {
            return Ok(copy.value.clone());
        }
        let value = match master.find() {
            Some(value) => {
                let transfer = self.transfer(value, device, master.dtype);
                transfer.map_err(|error| error.to_string())
            }
            None => Err(master.missing_message()),
        };
        value.or_else(|reason| copy.map(|copy| copy.value.clone()).ok_or(reason))
    }
}
