//! The log of what happened to memory, written from inside the allocator: atomics in a buffer that
//! is reserved when a recording starts.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// What a buffer is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Category {
    Parameter,
    Gradient,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Allocated {
        address: usize,
        size: usize,
    },
    Freed {
        address: usize,
        size: usize,
    },
    /// The bytes from `address` on are of a category.
    Shown {
        address: usize,
        size: usize,
        category: Category,
    },
    /// A phase begins: its index in the recorder's list.
    Entered {
        phase: usize,
    },
    /// The next moment of a recomputed block.
    Block {
        run: usize,
    },
}

/// The events that fit in the log, at 32 bytes each.
const CAPACITY: usize = 1 << 21;

static LOGGING: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    start: Instant,
    entries: Box<[Entry]>,
}

#[derive(Default)]
struct Entry {
    /// Nanoseconds since the first recording of the process.
    time: AtomicU64,
    address: AtomicUsize,
    size: AtomicUsize,
    /// Written last; zero means not written yet.
    kind: AtomicUsize,
}

const ALLOCATED: usize = 1;
const FREED: usize = 2;
const PARAMETER: usize = 3;
const GRADIENT: usize = 4;
const ENTERED: usize = 5;
const BLOCK: usize = 6;

/// Bytes of the log itself, which the program allocates, too.
pub(super) fn log_size() -> usize {
    LOG.get().map_or(0, |log| size_of_val(&*log.entries))
}

/// Starts the log. It may not be under way.
pub(super) fn start() {
    let log = LOG.get_or_init(|| Log {
        start: Instant::now(),
        entries: (0..CAPACITY).map(|_| Entry::default()).collect(),
    });
    let used = NEXT.load(Ordering::SeqCst).min(CAPACITY);
    for entry in &log.entries[..used] {
        entry.kind.store(0, Ordering::Relaxed);
    }
    NEXT.store(0, Ordering::SeqCst);
    LOGGING.store(true, Ordering::SeqCst);
}

/// Ends the log.
pub(crate) fn stop() {
    LOGGING.store(false, Ordering::SeqCst);
}

/// The events of the log in order with their time in seconds, and how many did not fit.
pub(super) fn read() -> (Vec<(f64, Event)>, usize) {
    let Some(log) = LOG.get() else {
        return (Vec::new(), 0);
    };
    let all = NEXT.load(Ordering::SeqCst);
    let used = all.min(CAPACITY);
    let first = log
        .entries
        .first()
        .map_or(0, |e| e.time.load(Ordering::Relaxed));
    let events = log.entries[..used].iter().filter_map(|entry| {
        let event = entry.read()?;
        let time = entry.time.load(Ordering::Relaxed).saturating_sub(first);
        Some((time as f64 / 1e9, event))
    });
    (events.collect(), all - used)
}

#[inline]
pub(super) fn allocated(address: usize, size: usize) {
    write(ALLOCATED, address, size);
}

#[inline]
pub(super) fn freed(address: usize, size: usize) {
    write(FREED, address, size);
}

pub(super) fn shown(category: Category, address: usize, size: usize) {
    let kind = match category {
        Category::Parameter => PARAMETER,
        Category::Gradient => GRADIENT,
    };
    write(kind, address, size);
}

pub(super) fn entered(phase: usize) {
    write(ENTERED, phase, 0);
}

pub(super) fn block_noted(run: usize) {
    write(BLOCK, run, 0);
}

#[inline]
fn write(kind: usize, address: usize, size: usize) {
    if LOGGING.load(Ordering::Relaxed) {
        log(kind, address, size);
    }
}

#[cold]
fn log(kind: usize, address: usize, size: usize) {
    // The log is there: it is set before the first recording starts.
    let Some(log) = LOG.get() else { return };
    let Some(entry) = log.entries.get(NEXT.fetch_add(1, Ordering::Relaxed)) else {
        return;
    };
    let time = log.start.elapsed().as_nanos() as u64;
    entry.time.store(time, Ordering::Relaxed);
    entry.address.store(address, Ordering::Relaxed);
    entry.size.store(size, Ordering::Relaxed);
    entry.kind.store(kind, Ordering::Release);
}

impl Entry {
    /// None if another thread is still writing it.
    fn read(&self) -> Option<Event> {
        let kind = self.kind.load(Ordering::Acquire);
        let address = self.address.load(Ordering::Relaxed);
        let size = self.size.load(Ordering::Relaxed);
        let shown = |category| Event::Shown {
            address,
            size,
            category,
        };
        match kind {
            ALLOCATED => Some(Event::Allocated { address, size }),
            FREED => Some(Event::Freed { address, size }),
            PARAMETER => Some(shown(Category::Parameter)),
            GRADIENT => Some(shown(Category::Gradient)),
            ENTERED => Some(Event::Entered { phase: address }),
            BLOCK => Some(Event::Block { run: address }),
            _ => None,
        }
    }
}
