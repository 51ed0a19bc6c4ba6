use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use burn::module::ParamId;
use parking_lot::Mutex;

/// Where the closure of a fused step is, on its thread: in the step itself, in a block that runs
/// without recording, or in the second run of such a block.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// The autodiff graph that operations are recorded in. Graphs share no node: each is locked while
    /// its backward steps run, and a second run happens in one of them.
    graph: usize,
    /// Set if operations are not recorded: whom to tell which parameters the block reads.
    readers: Option<Arc<Mutex<Readers>>>,
    /// Of the random numbers in here, and the number of blocks that have taken some.
    random: Option<(u64, u64)>,
}

/// The parameters that a block has read without recording.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    found: HashMap<ParamId, Arc<dyn Reader>>,
}

/// A parameter whose gradient waits for the second run of a block.
pub(crate) trait Reader: std::fmt::Debug + Send + Sync {
    /// The second run has read the parameter itself.
    fn redeem(&self);
}

thread_local! {
    static CURRENT: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Puts the scope back that was there before, when dropped.
pub(crate) struct Entered {
    before: Option<Scope>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

fn enter(scope: Scope) -> Entered {
    Entered {
        before: CURRENT.replace(Some(scope)),
    }
}

impl Scope {
    /// A fused step begins on this thread.
    pub(crate) fn enter_step() -> Entered {
        enter(Self {
            graph: next_graph(),
            readers: None,
            random: None,
        })
    }

    /// Whether a fused step is under way on this thread.
    pub(crate) fn is_entered() -> bool {
        CURRENT.with_borrow(Option::is_some)
    }

    /// A block begins whose operations are not recorded. A block inside of it reads for it.
    pub(crate) fn enter_unrecorded(seed: u64) -> (Entered, Arc<Mutex<Readers>>) {
        let readers = Self::readers().unwrap_or_default();
        let entered = enter(Self {
            graph: Self::graph(),
            readers: Some(readers.clone()),
            random: Some((seed, 0)),
        });
        (entered, readers)
    }

    /// The second run of a block begins, in a graph of its own.
    pub(crate) fn enter_second_run(seed: u64) -> Entered {
        enter(Self {
            graph: next_graph(),
            readers: None,
            random: Some((seed, 0)),
        })
    }

    /// The graph that a read is recorded in.
    pub(crate) fn graph() -> usize {
        CURRENT.with_borrow(|current| current.as_ref().map_or(0, |scope| scope.graph))
    }

    /// Whom to tell of a read, if reads are not recorded.
    pub(crate) fn readers() -> Option<Arc<Mutex<Readers>>> {
        CURRENT.with_borrow(|current| current.as_ref()?.readers.clone())
    }

    /// The seed for the next block in here; `draw` makes the first of a step.
    pub(crate) fn next_seed(draw: impl FnOnce() -> u64) -> u64 {
        let random = CURRENT.with_borrow(|current| current.as_ref().and_then(|scope| scope.random));
        let (seed, count) = random.unwrap_or_else(|| (draw(), 0));
        CURRENT.with_borrow_mut(|current| {
            if let Some(scope) = current {
                scope.random = Some((seed, count + 1));
            }
        });
        mix(seed, count)
    }
}

impl Readers {
    /// Adds a parameter; false if it is there already.
    pub(crate) fn add(&mut self, id: ParamId, reader: Arc<dyn Reader>) -> bool {
        self.found.insert(id, reader).is_none()
    }

    /// Takes all.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Arc<dyn Reader>> {
        std::mem::take(&mut self.found).into_values()
    }
}

fn next_graph() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};

    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Another seed for every count: the finalizer of SplitMix64 (Steele et al., 2014).
pub(crate) fn mix(seed: u64, count: u64) -> u64 {
    let mut z = seed.wrapping_add(count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
