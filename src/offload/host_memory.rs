use sysinfo::{CGroupLimits, ProcessRefreshKind, ProcessesToUpdate, System};

/// Memory of the machine in bytes, as the operating system reports it.
pub(crate) struct HostMemory {
    /// Bytes that this process holds.
    pub(crate) held: u64,
    /// Bytes that a process can allocate without swapping, including evictable file caches.
    pub(crate) available: u64,
    pub(crate) free_swap: u64,
    /// Limits of the control group of this process.
    pub(crate) group: Option<CGroupLimits>,
}

impl HostMemory {
    /// Reads the current values.
    pub(crate) fn now() -> Result<Self, &'static str> {
        let pid = sysinfo::get_current_pid()?;
        let mut system = System::new();
        system.refresh_memory();
        let refresh = ProcessRefreshKind::nothing().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, refresh);
        let process = system.process(pid);
        let group = process.and_then(|process| process.cgroup_limits());
        Ok(Self {
            held: process.map_or(0, |process| process.memory()),
            available: system.available_memory(),
            free_swap: system.free_swap(),
            // In a container without a namespace for groups, the path of the group does not exist: its limits are at the root.
            group: group.or_else(|| system.cgroup_limits()),
        })
    }
}
