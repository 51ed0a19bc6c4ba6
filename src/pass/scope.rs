use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use burn::module::ParamId;
use parking_lot::Mutex;

use crate::random::mix;

/// Where the closure of a fused step is, on its thread: in the step itself, or in a run of a
/// recomputed block.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// The autodiff graph that operations are recorded in. Graphs share no node: each is locked while
    /// its backward steps run, and a second run happens in one of them.
    graph: usize,
    in_block: bool,
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
    /// Path of the parameter in the model.
    fn path(&self) -> &str;

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
            in_block: false,
            readers: None,
            random: None,
        })
    }

    /// Whether a block is under way, whichever of its runs.
    pub(crate) fn is_in_block() -> bool {
        CURRENT.with_borrow(|current| current.as_ref().is_some_and(|scope| scope.in_block))
    }

    /// A block begins whose operations are not recorded. A block inside of it reads for it.
    pub(crate) fn enter_unrecorded(seed: u64) -> (Entered, Arc<Mutex<Readers>>) {
        let readers = Self::readers().unwrap_or_default();
        let entered = enter(Self {
            graph: Self::graph(),
            in_block: true,
            readers: Some(readers.clone()),
            random: Some((seed, 0)),
        });
        (entered, readers)
    }

    /// A block begins whose operations are recorded with those around it.
    pub(crate) fn enter_kept(seed: u64) -> Entered {
        enter(Self {
            graph: Self::graph(),
            in_block: true,
            readers: None,
            random: Some((seed, 0)),
        })
    }

    /// The second run of a block begins, in a graph of its own.
    pub(crate) fn enter_second_run(seed: u64) -> Entered {
        enter(Self {
            graph: next_graph(),
            in_block: true,
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

    /// The seed that those of the blocks in here come from, if there are any.
    pub(crate) fn seed() -> Option<u64> {
        CURRENT.with_borrow(|current| Some(current.as_ref()?.random?.0))
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

    /// The paths of the parameters.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.found.values().map(|reader| reader.path())
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
