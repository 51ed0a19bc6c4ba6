//! Backends for the command line.

use burn::tensor::Device;
use clap::ValueEnum;

/// The backends that the example is built with.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Backend {
    /// The CPU.
    Flex,
    #[cfg(feature = "wgpu")]
    Wgpu,
    #[cfg(feature = "cuda")]
    Cuda,
    /// The CPU, with the kernels of a GPU.
    #[cfg(feature = "cpu")]
    Cpu,
}

impl Backend {
    pub fn device(self) -> Device {
        match self {
            Self::Flex => Device::flex(),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => Device::wgpu(Default::default()),
            #[cfg(feature = "cuda")]
            Self::Cuda => Device::cuda(0),
            #[cfg(feature = "cpu")]
            Self::Cpu => Device::cpu(),
        }
    }
}
