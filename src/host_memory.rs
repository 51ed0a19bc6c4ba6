use sysinfo::{CGroupLimits, ProcessRefreshKind, ProcessesToUpdate, System};

/// What the system tells of its memory, in bytes.
pub(crate) struct HostMemory {
    /// By this process.
    pub(crate) held: u64,
    /// To any process, without swapping: what is kept of files makes room.
    pub(crate) available: u64,
    pub(crate) free_swap: u64,
    /// Of the control group of this process.
    pub(crate) group: Option<CGroupLimits>,
}

impl HostMemory {
    /// As it is now, or why nobody knows.
    pub(crate) fn now() -> Result<Self, &'static str> {
        let pid = sysinfo::get_current_pid()?;
        let mut system = System::new();
        system.refresh_memory();
        let refresh = ProcessRefreshKind::nothing().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, refresh);
        let process = system.process(pid);
        Ok(Self {
            held: process.map_or(0, |process| process.memory()),
            available: system.available_memory(),
            free_swap: system.free_swap(),
            group: process.and_then(|process| process.cgroup_limits()),
        })
    }
}
