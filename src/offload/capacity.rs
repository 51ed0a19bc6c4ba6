//! Checks of the free host memory before an allocation: an operating system out of memory kills the process without an error.

use super::host_memory::HostMemory;
use crate::error::FusedError;

/// Returns an error if the host lacks the memory for `bytes` of offloaded parameters and states.
pub(crate) fn check_offload_fits(bytes: usize) -> Result<(), FusedError> {
    check_host_memory(bytes, "FusedConfig::offload")
        .map_err(|reason| FusedError::Offload { reason })
}

/// Returns an error that names `option` if the machine, or the control group of this process, has less than `bytes` left.
pub(super) fn check_host_memory(bytes: usize, option: &str) -> Result<(), String> {
    let available = if bytes == 0 { None } else { available() };
    match available {
        Some(available) if bytes as u64 > available => Err(format!(
            "`{option}` needs {bytes} bytes of host memory, and {available} are available: increase the memory of the process, or offload less"
        )),
        _ => Ok(()),
    }
}

/// Returns the bytes that this process can still allocate, swap included; `None` if unknown.
fn available() -> Option<u64> {
    let memory = HostMemory::now().ok()?;
    let of_machine = memory.available.saturating_add(memory.free_swap);
    let of_group = memory.group.map_or(u64::MAX, |group| {
        let available = group.total_memory.saturating_sub(group.rss);
        available.saturating_add(group.free_swap)
    });
    (memory.available > 0).then_some(of_machine.min(of_group))
}
