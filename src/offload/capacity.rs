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
    let memory = (bytes > 0).then(HostMemory::now).and_then(Result::ok);
    check(bytes, option, memory.as_ref())
}

fn check(bytes: usize, option: &str, memory: Option<&HostMemory>) -> Result<(), String> {
    match memory.and_then(available) {
        Some(available) if bytes as u64 > available => Err(format!(
            "`{option}` needs {bytes} bytes of host memory, and {available} are available: free memory on the machine, raise the memory limit of the process, or offload less"
        )),
        _ => Ok(()),
    }
}

/// Returns the bytes that this process can still allocate, swap included; `None` if unknown.
fn available(memory: &HostMemory) -> Option<u64> {
    let of_machine = memory.available.saturating_add(memory.free_swap);
    let of_group = memory.group.as_ref().map_or(u64::MAX, |group| {
        let available = group.total_memory.saturating_sub(group.rss);
        available.saturating_add(group.free_swap)
    });
    (memory.available > 0).then_some(of_machine.min(of_group))
}

#[cfg(test)]
mod tests {
    use sysinfo::CGroupLimits;

    use super::*;

    #[test]
    fn offload_beyond_least_available_memory_is_an_error() {
        let group = |total_memory, rss, free_swap| CGroupLimits {
            total_memory,
            free_memory: 0,
            free_swap,
            rss,
        };
        for (available, free_swap, group, expected) in [
            (100, 0, None, Some(100)),
            (100, 20, None, Some(120)),
            (100, 20, Some(group(90, 30, 5)), Some(65)),
            (100, 20, Some(group(900, 30, 5)), Some(120)),
            (100, 0, Some(group(90, 95, 0)), Some(0)),
            // The operating system does not report it.
            (0, 20, None, None),
        ] {
            let held = 0;
            let memory = HostMemory {
                held,
                available,
                free_swap,
                group,
            };
            let fits = |bytes: u64| check(bytes as usize, "option", Some(&memory));
            let most = expected.unwrap_or(1 << 40);
            assert_eq!(fits(most), Ok(()));
            let more = fits(most + 1);
            assert_eq!(more.is_err(), expected.is_some(), "{more:?}");
            if let Err(reason) = more {
                let words = format!("`option` needs {} bytes", most + 1);
                assert!(reason.contains(&words), "{reason}");
                assert!(
                    reason.contains(&format!("and {most} are available")),
                    "{reason}"
                );
            }
        }
    }
}
