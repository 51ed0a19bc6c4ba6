//! Signals that end the training: Ctrl-C, and on Unix SIGTERM and SIGHUP.
//!
//! The first signal ends the training after the current step, with a checkpoint. A signal at least one second later ends the program
//! at once. Outside of a training, the first signal ends the program at once.

use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts;
use signal_hook::flag;

/// `true` if the next signal ends the program at once.
static AT_ONCE: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// Interval in which a signal is looked for.
const INTERVAL: Duration = Duration::from_millis(50);

/// Time in which more signals are ignored. A closed terminal sends SIGHUP twice, and a session that ends sends SIGTERM and SIGHUP.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

#[cfg(unix)]
const SIGNALS: [i32; 3] = [consts::SIGINT, consts::SIGTERM, consts::SIGHUP];
#[cfg(not(unix))]
const SIGNALS: [i32; 2] = [consts::SIGINT, consts::SIGTERM];

/// The signals of this process.
pub struct Signals {
    /// `true` after a signal.
    pub stop: Arc<AtomicBool>,
    last: Arc<AtomicUsize>,
}

impl Signals {
    /// Handles the signals from now on.
    pub fn handle() -> Result<Self> {
        let signals = Self {
            stop: Arc::default(),
            last: Arc::default(),
        };
        for signal in SIGNALS.into_iter().filter(|signal| !is_nohup(*signal)) {
            let number = signal as usize;
            // Called in this order.
            flag::register_conditional_shutdown(signal, exit_code(number), AT_ONCE.clone())
                .and_then(|_| flag::register_usize(signal, signals.last.clone(), number))
                .and_then(|_| flag::register(signal, signals.stop.clone()))
                .with_context(|| format!("signal {signal} can't be handled"))?;
        }
        let stop = signals.stop.clone();
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(INTERVAL);
            }
            let text = "stopping after this step, with a checkpoint; after one second, another signal ends at once, without one";
            // If nothing can be printed, the checkpoint still counts. Printing to a full pipe blocks.
            thread::spawn(move || drop(writeln!(stderr(), "{text}")));
            thread::sleep(GRACE_PERIOD);
            AT_ONCE.store(true, Ordering::Relaxed);
        });
        Ok(signals)
    }

    /// Returns the exit code of a program that a signal has ended; `None` without a signal.
    pub fn exit_code(&self) -> Option<i32> {
        match self.last.load(Ordering::Relaxed) {
            0 => None,
            number => Some(exit_code(number)),
        }
    }
}

/// Marks the start (`true`) or the end (`false`) of the part of the program that a signal does not end at once.
pub fn set_training(is_training: bool) {
    AT_ONCE.store(!is_training, Ordering::Relaxed);
}

/// Returns the exit code that shells give to a program that this signal has ended.
fn exit_code(signal: usize) -> i32 {
    128 + signal as i32
}

/// Returns `true` for SIGHUP of a program that `nohup` has started.
fn is_nohup(signal: i32) -> bool {
    cfg!(unix) && signal == 1 && is_ignored(signal)
}

/// Returns `true` if the parent process has set this signal to be ignored. Known on Linux only.
pub fn is_ignored(signal: i32) -> bool {
    let mask = || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let mask = status.lines().find_map(|it| it.strip_prefix("SigIgn:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    mask().is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
