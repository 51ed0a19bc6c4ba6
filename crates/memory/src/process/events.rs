//! The log of memory events, written from inside the allocator. It consists of atomics in chunks that come from the
//! operating system, not from the program's allocator. They are released when the recording ends.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// The use of allocated bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// Value of a parameter.
    Parameter,
    /// Gradient of a parameter.
    Gradient,
    /// State of an optimizer.
    State,
    /// Any other use.
    Rest,
}

impl Category {
    pub(super) const ALL: [Self; 4] = [Self::Parameter, Self::Gradient, Self::State, Self::Rest];
}

/// An event of a recording.
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
    /// The bytes from `address` on belong to a category.
    Used {
        address: usize,
        size: usize,
        category: Category,
    },
    /// A phase starts: its index in the recorder's list.
    Entered {
        phase: usize,
    },
    /// The next moment of a checkpointed block.
    Block {
        run: usize,
    },
    /// A gradient of a parameter is complete.
    Gradient {
        size: usize,
    },
}

/// Number of events in a chunk of 1 MB.
const CHUNK: usize = 1 << 15;
/// Largest number of chunks: 33 million events.
const CHUNKS: usize = 1 << 10;

static LOGGING: AtomicBool = AtomicBool::new(false);
/// Number of threads that are writing an event.
static WRITERS: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static LOG: [AtomicPtr<Entry>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];
static START: OnceLock<Instant> = OnceLock::new();

/// An event in the log. All zeros is a valid entry that has not been written.
#[repr(C)]
struct Entry {
    /// Nanoseconds since the first recording of the process.
    time: AtomicU64,
    address: AtomicUsize,
    size: AtomicUsize,
    kind: AtomicUsize,
}

/// Kind of an event of the first category.
const USED: usize = 6;

impl Event {
    /// Returns kind, address and size. The kind is not zero.
    #[inline]
    fn written(self) -> [usize; 3] {
        match self {
            Self::Allocated { address, size } => [1, address, size],
            Self::Freed { address, size } => [2, address, size],
            Self::Entered { phase } => [3, phase, 0],
            Self::Block { run } => [4, run, 0],
            Self::Gradient { size } => [5, 0, size],
            Self::Used {
                address,
                size,
                category,
            } => [USED + category as usize, address, size],
        }
    }

    /// Reads the result of `written`.
    fn read([kind, address, size]: [usize; 3]) -> Option<Self> {
        match kind {
            0 => None,
            1 => Some(Self::Allocated { address, size }),
            2 => Some(Self::Freed { address, size }),
            3 => Some(Self::Entered { phase: address }),
            4 => Some(Self::Block { run: address }),
            5 => Some(Self::Gradient { size }),
            _ => Some(Self::Used {
                address,
                size,
                category: *Category::ALL.get(kind - USED)?,
            }),
        }
    }
}

/// Starts the log. No log may be active, and the previous one must have been cleared.
pub(super) fn start() {
    START.get_or_init(Instant::now);
    NEXT.store(0, Ordering::SeqCst);
    LOGGING.store(true, Ordering::SeqCst);
}

/// Ends the log.
pub(crate) fn stop() {
    LOGGING.store(false, Ordering::SeqCst);
    // Each writer runs a few instructions of the allocator.
    while WRITERS.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
}

/// Releases the memory of the log, which has ended.
pub(super) fn clear() {
    for chunk in &LOG {
        let first = chunk.swap(null_mut(), Ordering::SeqCst);
        if !first.is_null() {
            // SAFETY: it came from `System` with this layout, and no reference is left: a writer checks that the log is
            // active before it loads a chunk, and `stop` has waited for earlier writers.
            unsafe { System.dealloc(first.cast(), layout()) };
        }
    }
}

fn layout() -> Layout {
    Layout::new::<[Entry; CHUNK]>()
}

/// Returns the number of events that did not fit.
pub(super) fn lost() -> usize {
    let all = NEXT.load(Ordering::SeqCst);
    all - events().count()
}

/// Returns the events of the log, which has ended, in order, with their time in seconds.
pub(super) fn events() -> impl Iterator<Item = (f64, Event)> {
    let written = NEXT.load(Ordering::SeqCst).min(CHUNKS * CHUNK);
    let time = |index| entry(index).map_or(0, |it| it.time.load(Ordering::Relaxed));
    let first = time(0);
    (0..written).filter_map(move |index| {
        let Entry {
            kind,
            address,
            size,
            ..
        } = entry(index)?;
        let event = Event::read([kind, address, size].map(|it| it.load(Ordering::Relaxed)))?;
        let nanoseconds = time(index).saturating_sub(first);
        Some((nanoseconds as f64 / 1e9, event))
    })
}

/// Writes an event, if the log is active.
#[inline]
pub(super) fn note(event: Event) {
    if LOGGING.load(Ordering::Relaxed) {
        log(event);
    }
}

#[cold]
fn log(event: Event) {
    WRITERS.fetch_add(1, Ordering::SeqCst);
    // `clear` runs after the log has ended and the writers have left.
    if LOGGING.load(Ordering::SeqCst)
        && let Some(entry) = entry(NEXT.fetch_add(1, Ordering::SeqCst))
    {
        let time = START.get().map_or(0, |start| start.elapsed().as_nanos());
        let [kind, address, size] = event.written();
        entry.time.store(time as u64, Ordering::Relaxed);
        entry.address.store(address, Ordering::Relaxed);
        entry.size.store(size, Ordering::Relaxed);
        entry.kind.store(kind, Ordering::Relaxed);
    }
    WRITERS.fetch_sub(1, Ordering::SeqCst);
}

/// Returns the entry of an event; `None` if the log is full. Call it only between `start` and `clear`.
fn entry(index: usize) -> Option<&'static Entry> {
    let chunk = LOG.get(index / CHUNK)?;
    let mut first = chunk.load(Ordering::Acquire);
    if first.is_null() {
        // SAFETY: the layout is not empty.
        let new = unsafe { System.alloc_zeroed(layout()) }.cast::<Entry>();
        let put = chunk.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
        first = put.map_or_else(|other| other, |_| new);
        if first != new && !new.is_null() {
            // SAFETY: it came from `System` with this layout, and was never shared.
            unsafe { System.dealloc(new.cast(), layout()) };
        }
    }
    // SAFETY: a chunk has `CHUNK` entries, for which zeros are valid. It is allocated until `clear`, which runs after all
    // writers, and all its fields are atomic.
    (!first.is_null()).then(|| unsafe { &*first.add(index % CHUNK) })
}
