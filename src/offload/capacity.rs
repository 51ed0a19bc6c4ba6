//! Whether the host has memory left for what is to wait there. It is asked before: a system that has none left ends a process without a word.

use crate::error::FusedError;
use crate::host_memory::HostMemory;

/// Refuses a host that has no memory left for so many bytes of what is to wait there.
pub(crate) fn check_offload_fits(bytes: usize) -> Result<(), FusedError> {
    check_host_memory(bytes, "FusedConfig::offload")
        .map_err(|reason| FusedError::Offload { reason })
}

/// Refuses `bytes` more in host memory if the machine, or the control group of this process, has less left. Says so in the name of
/// `option`, which asks for them.
pub(super) fn check_host_memory(bytes: usize, option: &str) -> Result<(), String> {
    let left = if bytes == 0 { None } else { available() };
    match left {
        Some(left) if bytes as u64 > left => Err(format!(
            "`{option}` needs {bytes} bytes of host memory, of which {left} are left: give the process more, or have less wait there"
        )),
        _ => Ok(()),
    }
}

/// What this process can still get, swap included, if the system tells.
fn available() -> Option<u64> {
    let memory = HostMemory::now().ok()?;
    let of_machine = memory.available.saturating_add(memory.free_swap);
    let of_group = memory.group.map_or(u64::MAX, |group| {
        let left = group.total_memory.saturating_sub(group.rss);
        left.saturating_add(group.free_swap)
    });
    Some(of_machine.min(of_group)).filter(|left| *left > 0)
}
