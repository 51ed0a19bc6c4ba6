//! The most memory that a training has used.

use backburn::Plan;
use backburn::optim::AdamWConfig;
use peak_alloc::PeakAlloc;

use crate::print::say;

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
