//! Devices of a training.

use std::str::FromStr;

use anyhow::{Result, anyhow, ensure};
use burn::tensor::Device;
use clap::ValueEnum;

use crate::backend::Backend;
use crate::options::Options;

/// Devices on the command line.
#[derive(Clone, Debug)]
pub enum Devices {
    /// A number of devices of the selected backend.
    Count(u16),
    Names(Vec<String>),
}

impl FromStr for Devices {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Ok(count) = text.parse() {
            ensure!(count > 0, "at least one device is needed");
            return Ok(Self::Count(count));
        }
        Ok(Self::Names(text.split(',').map(str::to_string).collect()))
    }
}

impl Devices {
    pub fn count(&self) -> usize {
        match self {
            Self::Count(count) => (*count).into(),
            Self::Names(names) => names.len(),
        }
    }

    /// Opens the devices: different ones if they are counted and exist, or else the same.
    pub fn open(&self, options: &Options) -> Result<Vec<Device>> {
        match self {
            Self::Count(count) => {
                let devices = (0..(*count).into()).map(|index| nth(options.device, index));
                Ok(devices.collect())
            }
            Self::Names(names) => names.iter().map(|name| named(name, options)).collect(),
        }
    }
}

fn nth(kind: Backend, index: usize) -> Device {
    match kind {
        #[cfg(feature = "cuda")]
        Backend::Cuda => Device::cuda(index),
        _ => {
            let _ = index;
            kind.device()
        }
    }
}

fn named(name: &str, options: &Options) -> Result<Device> {
    #[cfg(feature = "remote")]
    if name.contains("://") {
        use burn::remote::RemoteHost;

        let host = RemoteHost::websocket(name);
        let host = match &options.token {
            Some(token) => host.with_credential(token.as_str()),
            None => host,
        };
        let device = Device::remote_options(&host).init();
        return device.map_err(|error| anyhow!("{name}: {error}"));
    }
    let _ = options;
    let kind = Backend::from_str(name, true);
    kind.map(Backend::device)
        .map_err(|_| anyhow!("{name} is not a device of this build"))
}
