//! Tensors that are saved for the backward pass in the memory of the host. They leave while the forward pass goes on, and the last ones
//! come back first, each while the backward pass is at what was saved after it.

#[cfg(all(test, feature = "flex"))]
mod tests;

use std::sync::{Arc, Weak};

use burn::tensor::{Device, Tensor, TensorData};
use parking_lot::{Condvar, Mutex};

use super::capacity::check_host_memory;
use super::workers::TransferWorkers;
use crate::device::{caught, hand_over, of_data, read};

/// Asks for it.
const OPTION: &str = "GradientCheckpointingConfig::offload_inputs";

/// What a pass has saved on the host.
#[derive(Debug)]
pub(crate) struct ActivationOffload {
    transfers: Arc<TransferWorkers>,
    /// Whether whoever saves or takes something waits for it: a recording knows one thread at a time.
    is_synchronous: bool,
    /// In the order in which they were saved.
    order: Mutex<Vec<Weak<OffloadedTensors>>>,
}

/// Tensors that were saved together, without autodiff. The rank in their type doesn't matter.
pub(crate) struct OffloadedTensors {
    bytes: usize,
    state: Mutex<TransferState>,
    is_fetched: Condvar,
}

enum TransferState {
    /// On the device, until a copy of them is on the host.
    Offloading(Vec<Tensor<1>>),
    /// On the host alone, for a device.
    OnHost(Vec<(TensorData, Device)>),
    /// On the way back.
    Fetching,
    /// On the device.
    OnDevice(Vec<Tensor<1>>),
    /// Lost on the way, for a reason.
    Failed(String),
}

impl ActivationOffload {
    pub(crate) fn new(transfers: Arc<TransferWorkers>, is_synchronous: bool) -> Self {
        Self {
            transfers,
            is_synchronous,
            order: Mutex::default(),
        }
    }

    /// Whether a tensor on `device` would leave it.
    pub(crate) fn is_offloadable(&self, device: &Device) -> bool {
        self.transfers.has_own_memory(device)
    }

    /// Saves `tensors` on the host. They are on the device until they have arrived.
    pub(crate) fn save(&self, tensors: Vec<Tensor<1>>) -> Arc<OffloadedTensors> {
        let bytes = tensors.iter().map(bytes).sum();
        let saved = Arc::new(OffloadedTensors {
            bytes,
            state: Mutex::new(TransferState::Offloading(tensors)),
            is_fetched: Condvar::new(),
        });
        self.order.lock().push(Arc::downgrade(&saved));
        if self.is_synchronous {
            saved.offload();
        } else {
            let limit = self.transfers.limit.activations(bytes);
            let offloading = Arc::downgrade(&saved);
            self.transfers.to_host.submit(bytes, limit, move || {
                if let Some(saved) = offloading.upgrade() {
                    saved.offload();
                }
            });
        }
        saved
    }

    /// The tensors where they were, or why they can't be there. Those that were saved before them are sent for.
    pub(crate) fn take(&self, saved: Arc<OffloadedTensors>) -> Result<Vec<Tensor<1>>, String> {
        let before = {
            let mut order = self.order.lock();
            order.retain(|other| other.strong_count() > 0);
            let place = order
                .iter()
                .position(|it| it.as_ptr() == Arc::as_ptr(&saved));
            let place = place.expect("they were saved in this pass, and are taken once");
            order.remove(place);
            order[..place].last().and_then(Weak::upgrade)
        };
        #[cfg(test)]
        PREFETCHED.with_borrow_mut(|all| {
            all.push(!matches!(*saved.state.lock(), TransferState::OnHost(_)))
        });
        self.start_fetch(&saved);
        let tensors = saved.take();
        if let Some(before) = before {
            self.prefetch(&before);
        }
        tensors
    }

    /// Sends for those that were saved last: the backward pass begins.
    pub(crate) fn prefetch_last(&self) {
        let last = self.order.lock().iter().rev().find_map(Weak::upgrade);
        if let Some(last) = last {
            self.prefetch(&last);
        }
    }

    /// Has `saved` come back beside what this thread does, as far as so much may be under way. Else it comes when it is taken.
    fn prefetch(&self, saved: &Arc<OffloadedTensors>) {
        if saved.bytes <= self.transfers.limit.prefetch() {
            self.start_fetch(saved);
        }
    }

    /// Has `saved` come back, if it has left: from one stream and its memory, whoever takes it.
    fn start_fetch(&self, saved: &Arc<OffloadedTensors>) {
        let Some(data) = saved.begin_fetch() else {
            return;
        };
        if self.is_synchronous {
            return saved.fetch(data);
        }
        let fetching = saved.clone();
        let worker = &self.transfers.to_device;
        worker.submit(saved.bytes, usize::MAX, move || fetching.fetch(data));
    }
}

impl OffloadedTensors {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Leaves the device, if nobody has taken the tensors or sent for them.
    fn offload(&self) {
        let tensors = match &*self.state.lock() {
            TransferState::Offloading(tensors) => tensors.clone(),
            _ => return,
        };
        let devices: Vec<_> = tensors.iter().map(Tensor::device).collect();
        // Waits for the device. Meanwhile somebody may take them.
        let room = check_host_memory(self.bytes, OPTION);
        let data = room.and_then(|()| caught(|| tensors.into_iter().map(read).collect::<Vec<_>>()));
        let mut state = self.state.lock();
        if let TransferState::Offloading(_) = *state {
            *state = match data {
                Ok(data) => TransferState::OnHost(data.into_iter().zip(devices.clone()).collect()),
                Err(reason) => TransferState::Failed(reason),
            };
        }
        drop(state);
        devices.iter().for_each(hand_over);
    }

    /// Lets them stay if they have not left.
    fn begin_fetch(&self) -> Option<Vec<(TensorData, Device)>> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, TransferState::Fetching) {
            TransferState::OnHost(data) => return Some(data),
            TransferState::Offloading(tensors) => *state = TransferState::OnDevice(tensors),
            other => *state = other,
        }
        None
    }

    /// Comes back to the device.
    fn fetch(&self, data: Vec<(TensorData, Device)>) {
        let devices: Vec<_> = data.iter().map(|(_, device)| device.clone()).collect();
        let data = data.into_iter();
        let fetched = caught(|| data.map(|(data, device)| of_data(data, &device)).collect());
        devices.iter().for_each(hand_over);
        *self.state.lock() = fetched.map_or_else(TransferState::Failed, TransferState::OnDevice);
        self.is_fetched.notify_all();
    }

    /// The tensors, when they are back.
    fn take(&self) -> Result<Vec<Tensor<1>>, String> {
        let mut state = self.state.lock();
        while let TransferState::Fetching = *state {
            self.is_fetched.wait(&mut state);
        }
        match std::mem::replace(&mut *state, TransferState::Fetching) {
            TransferState::OnDevice(tensors) => Ok(tensors),
            TransferState::Failed(reason) => Err(reason),
            _ => unreachable!("they were sent for"),
        }
    }
}

fn bytes(tensor: &Tensor<1>) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}

#[cfg(test)]
thread_local! {
    /// For all that was taken on this thread, whether it was sent for before.
    static PREFETCHED: std::cell::RefCell<Vec<bool>> = const { std::cell::RefCell::new(Vec::new()) };
}
