//! Memory that a training uses, and the most that it has used.

use anyhow::Result;
use backburn::optim::AdamWConfig;
use backburn::{Plan, memory};
use burn::tensor::Device;
use peak_alloc::PeakAlloc;

use crate::print::say;

/// Returns `true` if the budget of `--fit` is for the memory of `device`, not for that of the process.
pub fn has_own_memory(device: &Device) -> bool {
    device.memory_pool_usage().is_some()
}

/// Returns the bytes in use in the memory that the budget of `--fit` is for.
pub fn held(device: &Device, bytes: &PeakAlloc) -> Result<usize> {
    match has_own_memory(device) {
        true => Ok(memory::live(device)?),
        false => Ok(bytes.current_usage()),
    }
}

/// Prints the most memory that was used.
pub fn report(plan: Option<&Plan<AdamWConfig>>, bytes: &PeakAlloc) {
    say!("peak {:.0} MB", bytes.peak_usage() as f64 / 1e6);
    if let Some(bytes) = resident_peak() {
        say!("resident peak {:.0} MB", bytes as f64 / 1e6);
    }
    if let Some(plan) = plan {
        say!(
            "planned {:.0} MB of allocated bytes; the program, mapped files and free pages of the heap are resident in addition",
            plan.device_bytes as f64 / 1e6
        );
    }
}

/// Returns the most memory of this process so far, where the system is Linux.
fn resident_peak() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:"))?;
    let kilobytes: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(1024 * kilobytes)
}
