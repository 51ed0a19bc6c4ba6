//! Running states of code that runs twice: both runs see them alike, and they are updated once.
//!
//! Burn keeps the last update of every thread aside. `RunningState::value_sync` shows it on the thread that made it, as
//! batch normalization reads its statistics; `RunningState::value` does not, until the next update of that thread. What is
//! aside can be neither looked at nor put back, only merged.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;

use burn::backend::autodiff::NodeId;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::running::running_statistics;
use super::statistics::merge_pending;
use crate::pass::Reads;
use crate::tap::node;

/// The values of running states, as they are without what is aside.
type Values = HashMap<ParamId, Box<dyn Value>>;

/// The value of a running state.
trait Value: Send + Debug {
    fn as_any(&self) -> &dyn Any;

    /// Which tensor it is.
    fn node(&self) -> Option<NodeId>;

    /// What it holds; waits for the device.
    fn bits(&self) -> Vec<u8>;
}

impl<const D: usize> Value for Tensor<D> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn node(&self) -> Option<NodeId> {
        node(self)
    }

    fn bits(&self) -> Vec<u8> {
        self.clone().inner().into_data().as_bytes().to_vec()
    }
}

/// The running states of a module.
#[derive(Debug)]
struct States {
    all: HashSet<ParamId>,
    /// Those that no batch normalization has.
    own: HashSet<ParamId>,
}

impl States {
    fn of<M: Module>(module: &M) -> Self {
        let mut own = Own {
            among: running_statistics(module),
            container: Vec::new(),
            found: HashSet::new(),
        };
        if !own.among.is_empty() {
            module.visit(&mut own);
        }
        Self {
            all: own.among,
            own: own.found,
        }
    }

    fn values<M: Module>(&self, module: &M) -> Values {
        let mut values = Collect {
            among: &self.all,
            found: HashMap::new(),
        };
        if !self.all.is_empty() {
            module.visit(&mut values);
        }
        values.found
    }

    /// Puts in, of those that are read late, what is of `late`, and of the others what is of `in_time`.
    fn put<M: Module>(&self, module: &M, reads: Reads, late: &Values, in_time: &Values) {
        if !self.all.is_empty() {
            let are_late = reads == Reads::Late;
            let mut put = Put {
                late: are_late.then_some((&self.own, late)),
                in_time,
            };
            // The clones of a module share its states.
            drop(module.clone().map(&mut put));
        }
    }

    /// Merges what is aside, which Burn does when a module is taken for validation.
    fn merge<M: Module>(&self, module: &M) {
        if !self.all.is_empty() {
            merge_pending(module);
        }
    }
}

/// The running states of a module whose passes see them alike. Dropped, they are as they were, with what was aside.
pub(crate) struct KeptStatistics<M: Module> {
    /// None if it has no states.
    module: Option<M>,
    states: States,
    /// As they are read late, and in time.
    late: Values,
    merged: Values,
}

impl<M: Module> KeptStatistics<M> {
    /// Of `module`, whose pass is to come.
    pub(crate) fn of(module: &M) -> Self {
        Self::merging(module, States::of(module))
    }

    /// The same, but nothing is merged if it is not known how states are read: then the first pass shows it.
    pub(crate) fn before(module: &M, known: Option<Reads>) -> Self {
        let states = States::of(module);
        if known.is_none() && !states.own.is_empty() {
            return Self::untouched(module, states);
        }
        let kept = Self::merging(module, states);
        kept.rewind(known.unwrap_or_default());
        kept
    }

    fn merging(module: &M, states: States) -> Self {
        let mut kept = Self::untouched(module, states);
        kept.states.merge(module);
        kept.see();
        kept
    }

    fn untouched(module: &M, states: States) -> Self {
        Self {
            late: states.values(module),
            merged: HashMap::new(),
            module: (!states.all.is_empty()).then(|| module.clone()),
            states,
        }
    }

    /// What was aside is there: it has been merged, or an update has brought it forth.
    pub(crate) fn see(&mut self) {
        if let Some(module) = self.module.as_ref().filter(|_| self.merged.is_empty()) {
            self.merged = self.states.values(module);
        }
    }

    /// Whether it matters how the states are read; waits for the device.
    pub(crate) fn differ(&self) -> bool {
        differ(&self.states.own, &self.late, &self.merged, |value| {
            value.bits()
        })
    }

    /// A pass begins, which sees them as the first did.
    pub(crate) fn rewind(&self, reads: Reads) {
        let Self { late, merged, .. } = self;
        if let Some(module) = &self.module {
            self.states.merge(module);
            self.states.put(module, reads, late, merged);
        }
    }

    /// Leaves the states as the last pass has left them.
    pub(crate) fn forget(mut self, reads: Reads) {
        let Some(module) = self.module.take() else {
            return;
        };
        if reads == Reads::Late {
            // The update has brought forth what was aside, or would have.
            self.states.all = std::mem::take(&mut self.states.own);
            let merged = &self.merged;
            self.states.put(&module, Reads::InTime, merged, merged);
        }
    }
}

impl<M: Module> Drop for KeptStatistics<M> {
    fn drop(&mut self) {
        self.see();
        self.rewind(Reads::InTime);
    }
}

/// The running states of a block, as its first run has seen them.
#[derive(Debug)]
pub(crate) struct SeenStates {
    states: States,
    /// Before that run.
    before: Values,
    /// After it: an update brings forth what was aside.
    after: Values,
}

impl SeenStates {
    /// Those of `block`, before its first run.
    pub(crate) fn before<M: Module>(block: &M) -> Self {
        let states = States::of(block);
        Self {
            before: states.values(block),
            after: HashMap::new(),
            states,
        }
    }

    /// The run is over.
    pub(crate) fn after<M: Module>(mut self, block: &M) -> Self {
        self.after = self.states.values(block);
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.states.all.is_empty()
    }

    /// Whether it matters how the states are read.
    pub(crate) fn differ(&self) -> bool {
        differ(&self.states.own, &self.before, &self.after, |value| {
            value.node()
        })
    }

    /// Whether there are some that no batch normalization has: what the block returns can depend on them.
    pub(crate) fn has_own(&self) -> bool {
        !self.states.own.is_empty()
    }

    /// Shows them again as the first run has seen them, until what is returned is dropped: what is aside is merged.
    pub(crate) fn again<'a, M: Module>(&'a self, block: &'a M, reads: Reads) -> Again<'a, M> {
        self.states.merge(block);
        self.shown(block, reads, Aside::Merged)
    }

    /// The same to a thread of its own. What is aside stays there, and what the run leaves beside it is the same again.
    pub(crate) fn again_elsewhere<'a, M: Module>(
        &'a self,
        block: &'a M,
        reads: Reads,
    ) -> Again<'a, M> {
        self.shown(block, reads, Aside::Left)
    }

    fn shown<'a, M: Module>(&'a self, block: &'a M, reads: Reads, aside: Aside) -> Again<'a, M> {
        let now = self.states.values(block);
        self.states.put(block, reads, &self.before, &self.after);
        Again {
            states: &self.states,
            block,
            now,
            aside,
        }
    }
}

/// What becomes of updates that Burn keeps aside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aside {
    Merged,
    Left,
}

/// Puts the states of a block back as they were, when dropped.
pub(crate) struct Again<'a, M: Module> {
    states: &'a States,
    block: &'a M,
    now: Values,
    aside: Aside,
}

impl<M: Module> Again<'_, M> {
    /// Leaves the update of the run, which is that of the first: another run has spoiled that.
    pub(crate) fn mend(mut self) {
        self.states.merge(self.block);
        self.now.clear();
        self.aside = Aside::Left;
    }
}

impl<M: Module> Drop for Again<'_, M> {
    fn drop(&mut self) {
        if self.aside == Aside::Merged {
            self.states.merge(self.block);
        }
        if !self.now.is_empty() {
            let now = &self.now;
            self.states.put(self.block, Reads::InTime, now, now);
        }
    }
}

/// Whether one of these states differs in `what` between `a` and `b`.
fn differ<T: PartialEq>(
    states: &HashSet<ParamId>,
    a: &Values,
    b: &Values,
    what: impl Fn(&dyn Value) -> T,
) -> bool {
    let differs = |id| match (a.get(id), b.get(id)) {
        (Some(a), Some(b)) => what(&**a) != what(&**b),
        _ => false,
    };
    states.iter().any(differs)
}

struct Own {
    among: HashSet<ParamId>,
    container: Vec<bool>,
    found: HashSet<ParamId>,
}

impl ModuleVisitor for Own {
    fn enter_module(&mut self, _name: &str, container_type: &str) {
        self.container.push(container_type == "Struct:BatchNorm");
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.container.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let is_of_batch_norm = self.container.last() == Some(&true);
        if self.among.contains(&param.id) && !is_of_batch_norm {
            self.found.insert(param.id);
        }
    }
}

struct Collect<'a> {
    among: &'a HashSet<ParamId>,
    found: Values,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.among.contains(&param.id) {
            self.found.insert(param.id, Box::new(param.base()));
        }
    }
}

/// Puts values in: for those that are read late others than for the rest.
struct Put<'a> {
    late: Option<(&'a HashSet<ParamId>, &'a Values)>,
    in_time: &'a Values,
}

impl ModuleMapper for Put<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let late = self.late.filter(|(own, _)| own.contains(&param.id));
        let values = late.map_or(self.in_time, |(_, late)| late);
        let value = values.get(&param.id);
        match value.and_then(|value| value.as_any().downcast_ref::<Tensor<D>>()) {
            Some(value) => {
                let (id, _changed, mapper) = param.consume();
                Param::from_mapped_value(id, value.clone(), mapper)
            }
            None => param,
        }
    }
}
