//! Tests of state that exists once per process: the logger, the heap, the default type of a device. Also tests of the
//! modules.

#[path = "../common/mod.rs"]
mod common;
mod default_type;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod keep_pages;
mod logging;
mod modules;
