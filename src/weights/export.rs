//! Values of parameters for ordinary modules.

use backburn_base::AnyTensor;
use burn::tensor::Device;

use super::copy::CopyLifetime;
use super::local_param::LocalParam;
use super::master_param::missing_message;

/// The value of a parameter to export.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    Current,
    /// The average; without averaging, the current value.
    Averaged,
}

/// The device and type of an exported value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportLocation {
    /// The storage type, at the location of the master.
    Stored,
    /// The storage type, on the device of this rank, or on the host if anything is offloaded.
    Ordinary,
    /// The compute type, on the compute device. A value that is fetched on each read stays at its master.
    Computing,
}

impl LocalParam {
    /// Returns a value as an ordinary trainable parameter holds it.
    ///
    /// # Panics
    ///
    /// Panics if the value can't be fetched.
    pub(super) fn exported(&self, value: Value, location: ExportLocation) -> AnyTensor {
        let Self { device, dtype, .. } = self;
        let master = &self.master;
        let transfer = |device, dtype| {
            let transfer = self.transfer(master.averaged(), device, dtype);
            transfer.map_err(|error| error.to_string())
        };
        let location = match location {
            ExportLocation::Computing if self.is_on_demand() => ExportLocation::Stored,
            location => location,
        };
        let found = match (value, location) {
            (Value::Current, ExportLocation::Stored) => Ok(master.value()),
            (Value::Current, ExportLocation::Ordinary) => self.stored_on(self.export_device()),
            (Value::Current, ExportLocation::Computing) => Ok(self.plain(CopyLifetime::Graph)),
            (Value::Averaged, ExportLocation::Stored) => Ok(master.averaged()),
            (Value::Averaged, ExportLocation::Ordinary) => {
                transfer(self.export_device(), master.dtype)
            }
            (Value::Averaged, ExportLocation::Computing) => transfer(device, *dtype),
        };
        let found = found.unwrap_or_else(|reason| panic!("{reason}"));
        self.constant_of(found).0.require_grad().into()
    }

    /// Returns the device of an exported value, without autodiff.
    fn export_device(&self) -> &Device {
        let engine = self.context.engine.as_ref();
        engine.map_or(&self.device, |engine| &engine.host)
    }

    /// Returns the stored value on the compute device, or a placeholder that panics with the reason: the error that
    /// ended the pass is reported first.
    pub(super) fn leaf_or_missing(&self) -> AnyTensor {
        let device = &self.device;
        let value = self.stored_on(device);
        let value = value.unwrap_or_else(|_| self.master.missing_value(device));
        self.constant_of(value).0.require_grad().into()
    }

    /// Returns the stored value on `device`. If it can't be fetched, returns an existing copy.
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
            None => Err(missing_message(&master.path)),
        };
        value.or_else(|reason| copy.map(|copy| copy.value.clone()).ok_or(reason))
    }
}
