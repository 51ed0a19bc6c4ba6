//! Optimizer states that are offloaded to the host. Each is fetched for the update of its parameter, then evicted. The
//! order of the previous pass determines which state to prefetch.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use backburn_base::caught::{Caught, catch};
use backburn_base::flush;
use backburn_optim::optimizer_record::{compact_records, load_on};
use burn::module::ParamId;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, Device};
use parking_lot::Mutex;

use super::states::{with_states, written};

/// The offloaded optimizer states.
pub(crate) struct OffloadedStates {
    /// States of parameters with at least this number of elements are offloaded.
    pub(super) min_elements: usize,
    all: Arc<Mutex<HashMap<ParamId, OffloadedState>>>,
    /// The successor of each parameter in the last pass that stepped it; `None` precedes the first.
    next: HashMap<Option<ParamId>, ParamId>,
    last: Option<ParamId>,
    /// Prefetched states.
    in_flight: HashMap<ParamId, Receiver<Result<ModuleOptimizer, Caught>>>,
}

/// An offloaded state.
#[derive(Clone)]
pub(super) enum OffloadedState {
    /// On the host, as a record in its storage format.
    OnHost(Bytes),
    /// On the device where its parameter was stepped, in an optimizer of its own, until it is evicted; with the bytes
    /// of its previous record.
    OnDevice(Arc<ModuleOptimizer>, Option<usize>),
}

/// The eviction of a state to the host, with its bytes if they are known. If it fails, the state stays on the device.
pub(crate) struct Eviction {
    pub(crate) bytes: Option<usize>,
    pub(crate) run: Box<dyn FnOnce() + Send>,
}

impl OffloadedState {
    fn bytes(&self) -> Option<usize> {
        match self {
            Self::OnHost(record) => Some(record.len()),
            Self::OnDevice(_, bytes) => *bytes,
        }
    }

    fn record(self) -> Bytes {
        match self {
            Self::OnHost(record) => record,
            Self::OnDevice(optimizer, _) => recorded(&optimizer),
        }
    }

    fn is_held_by(&self, optimizer: &Arc<ModuleOptimizer>) -> bool {
        matches!(self, Self::OnDevice(here, _) if Arc::ptr_eq(here, optimizer))
    }
}

impl OffloadedStates {
    pub(super) fn of(min_elements: usize, records: HashMap<ParamId, Bytes>) -> Self {
        let all = records.into_iter();
        let all = all.map(|(id, record)| (id, OffloadedState::OnHost(record)));
        Self {
            min_elements,
            all: Arc::new(Mutex::new(all.collect())),
            next: HashMap::new(),
            last: None,
            in_flight: HashMap::new(),
        }
    }

    pub(super) fn ids(&self) -> Vec<ParamId> {
        self.all.lock().keys().copied().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.lock().is_empty()
    }

    /// Returns `true` if this state is offloaded. A loaded state remains offloaded for any size.
    pub(super) fn has(&self, id: ParamId, elements: usize) -> bool {
        elements >= self.min_elements || self.all.lock().contains_key(&id)
    }

    pub(super) fn forget(&mut self, parameters: &[ParamId]) {
        let is_kept = |id: &ParamId| !parameters.contains(id);
        self.all.lock().retain(|id, _| is_kept(id));
        self.next
            .retain(|id, next| id.as_ref().is_none_or(is_kept) && is_kept(next));
    }

    fn get(&self, id: ParamId) -> Option<OffloadedState> {
        self.all.lock().get(&id).cloned()
    }

    pub(super) fn record(&self, id: ParamId) -> Option<Bytes> {
        self.get(id).map(OffloadedState::record)
    }

    pub(super) fn records(&self) -> Vec<Bytes> {
        let all: Vec<_> = self.all.lock().values().cloned().collect();
        all.into_iter().map(OffloadedState::record).collect()
    }

    /// Drops unused prefetches, and the order of the last pass. The records are unchanged.
    pub(crate) fn drop_prefetches(&mut self) {
        self.last = None;
        self.in_flight.clear();
    }

    /// Prepares the step of a parameter. Returns the prefetch of the next state to `device`, if it is offloaded and
    /// has at most `limit` bytes.
    pub(super) fn prefetch_next(
        &mut self,
        id: ParamId,
        limit: usize,
        device: &Device,
        optimizer: &ModuleOptimizer,
    ) -> Option<impl FnOnce() + Send + use<>> {
        self.next.insert(self.last.replace(id), id);
        self.in_flight.retain(|parameter, _| *parameter == id);
        let next = *self.next.get(&Some(id)).filter(|next| **next != id)?;
        let Some(OffloadedState::OnHost(record)) = self.get(next) else {
            return None;
        };
        if record.len() > limit {
            return None;
        }
        // Other states must keep a single owner.
        let fresh = optimizer.clone().load_record(OptimizerRecord::default());
        let (sender, receiver) = sync_channel(1);
        self.in_flight.insert(next, receiver);
        let device = device.clone();
        Some(move || {
            let loaded = catch(|| load_on(&device, || with_states(&fresh, [record])));
            flush(&device);
            // If the order has changed, nothing receives it.
            let _ = sender.send(loaded);
        })
    }

    /// Returns `optimizer` with only the state of the parameter, on `device` if its kind allows. The stored state is
    /// unchanged until [`store`](Self::store).
    pub(super) fn fetch(
        &mut self,
        id: ParamId,
        device: &Device,
        optimizer: &ModuleOptimizer,
    ) -> ModuleOptimizer {
        let prefetched = self.in_flight.remove(&id);
        #[cfg(test)]
        PREFETCHED.with_borrow_mut(|all| all.push(prefetched.is_some()));
        match (prefetched.map(|receiver| receiver.recv()), self.get(id)) {
            (Some(Ok(loaded)), _) => loaded.unwrap_or_else(|panic| panic.resume()),
            (_, Some(OffloadedState::OnDevice(here, _))) => (*here).clone(),
            (_, Some(OffloadedState::OnHost(record))) => {
                load_on(device, || with_states(optimizer, [record]))
            }
            (_, None) => with_states(optimizer, []),
        }
    }

    /// Stores the state in `optimizer`, which has no other. Returns its eviction.
    pub(super) fn store(&mut self, id: ParamId, optimizer: ModuleOptimizer) -> Eviction {
        let here = Arc::new(optimizer);
        let mut all = self.all.lock();
        let bytes = all.get(&id).and_then(OffloadedState::bytes);
        all.insert(id, OffloadedState::OnDevice(here.clone(), bytes));
        let all = self.all.clone();
        let run = move || {
            let record = recorded(&here);
            let mut all = all.lock();
            // If the parameter has been stepped again, a newer state is stored.
            let state = all.get_mut(&id).filter(|state| state.is_held_by(&here));
            let before =
                state.map(|state| std::mem::replace(state, OffloadedState::OnHost(record)));
            drop(all);
            drop(before);
        };
        Eviction {
            bytes,
            run: Box::new(run),
        }
    }
}

/// Returns the state in `optimizer` as a record in its storage format.
fn recorded(optimizer: &ModuleOptimizer) -> Bytes {
    compact_records(|| written(optimizer.to_record())).shared()
}

#[cfg(test)]
thread_local! {
    /// For each state fetched on this thread: `true` if it was prefetched.
    pub(crate) static PREFETCHED: std::cell::RefCell<Vec<bool>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[cfg(all(test, feature = "flex", feature = "ndarray"))]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::AdamConfig;
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::{FusedConfig, FusedOptimizer, Offload, OffloadConfig, OffloadHost};

    type Fused = FusedOptimizer<Vec<Linear>>;

    #[allow(deprecated)] // `ndarray`: Burn 0.22 still ships it.
    fn device() -> Device {
        Device::ndarray().autodiff()
    }

    /// Three layers, each with an offloaded weight and bias.
    fn fused(limit: Option<usize>) -> Fused {
        let linear = |_| LinearConfig::new(4, 4).init(&device());
        let model: Vec<Linear> = (0..3).map(linear).collect();
        let offload = OffloadConfig::new(Offload::States).with_host(OffloadHost::Flex);
        let config = FusedConfig::new()
            .with_offload(Some(offload.with_min_elements(1)))
            .with_max_bytes_in_flight(limit);
        FusedOptimizer::new(model, AdamConfig::new().init())
            .unwrap()
            .with_config_on(config, &device())
            .unwrap()
    }

    /// Steps through layers in this order, and returns which states were prefetched.
    fn step(fused: &mut Fused, order: &[usize]) -> Vec<bool> {
        PREFETCHED.take();
        fused
            .step(0.1, |model| {
                let x = Tensor::<2>::ones([3, 4], &device());
                let run = |x, layer: &usize| model[*layer].forward(x).tanh();
                order.iter().fold(x, run).mean()
            })
            .unwrap();
        PREFETCHED.take()
    }

    #[test]
    fn offloaded_states_after_first_are_prefetched() {
        let mut fused = fused(None);
        assert_eq!(step(&mut fused, &[0, 1, 2]), [false; 6]);
        for _ in 0..2 {
            assert_eq!(
                step(&mut fused, &[0, 1, 2]),
                [false, true, true, true, true, true]
            );
        }
        // Without the middle layer: its prefetch is dropped, and the order changes.
        assert_eq!(step(&mut fused, &[0, 2]), [false, true, false, true]);
        assert_eq!(step(&mut fused, &[0, 2]), [false, true, true, true]);
    }

    #[test]
    fn offloaded_state_beyond_limit_is_not_prefetched() {
        let mut fused = fused(Some(0));
        for _ in 0..3 {
            assert_eq!(step(&mut fused, &[0, 1, 2]), [false; 6]);
        }
    }
}
