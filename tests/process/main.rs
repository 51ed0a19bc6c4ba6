//! Tests of what a process has once: its logger, its heap, the default type of a device. And of the modules of the crate.

#[path = "../common/mod.rs"]
mod common;
mod default_type;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod keep_pages;
mod logging;
mod modules;
