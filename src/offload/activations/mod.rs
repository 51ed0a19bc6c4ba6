//! Activations in host memory between the forward and the backward pass. They are offloaded during the forward pass. The backward
//! pass fetches them in reverse order, one ahead.
//!
//! # Memory
//!
//! Tensors are on the device while `Offloading` or `OnDevice`, on the host while `OnHost`, and on both while
//! `Fetching`.

#[cfg(all(test, feature = "flex"))]
mod tests;

use std::sync::{Arc, Weak};

use backburn_base::caught::catch_message;
use backburn_base::{flush, of_data, read};
use burn::tensor::{Device, Tensor, TensorData};
use parking_lot::{Condvar, Mutex};

use super::capacity::check_host_memory;
use super::workers::TransferWorkers;

/// The option that enables it, for messages.
const OPTION: &str = "GradientCheckpointingConfig::offload_inputs";

/// The offloaded activations of a pass.
#[derive(Debug)]
pub(crate) struct ActivationOffload {
    pub(crate) transfers: Arc<TransferWorkers>,
    /// `true` if transfers run on the calling thread. A memory recording attributes bytes to one thread at a time.
    is_synchronous: bool,
    /// The tensors in the order in which they were saved.
    order: Mutex<Vec<Weak<OffloadedTensors>>>,
}

/// Tensors that were saved together, without autodiff, of any shape.
pub(crate) struct OffloadedTensors {
    bytes: usize,
    state: Mutex<TransferState>,
    is_fetched: Condvar,
}

enum TransferState {
    /// On the device, until the copy on the host is complete.
    Offloading(Vec<Tensor<1>>),
    /// On the host, with the device of each.
    OnHost(Vec<(TensorData, Device)>),
    /// In flight to the device.
    Fetching,
    /// On the device.
    OnDevice(Vec<Tensor<1>>),
    /// Lost in a transfer, with the reason.
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

    /// Starts to offload `tensors`.
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

    /// Returns the tensors on their devices, and prefetches those that were saved before them.
    pub(crate) fn take(&self, saved: Arc<OffloadedTensors>) -> Result<Vec<Tensor<1>>, String> {
        let before = {
            let mut order = self.order.lock();
            order.retain(|other| other.strong_count() > 0);
            let index = order
                .iter()
                .position(|it| it.as_ptr() == Arc::as_ptr(&saved));
            let index = index.expect("they were saved in this pass, and are taken once");
            order.remove(index);
            order[..index].last().and_then(Weak::upgrade)
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

    /// Prefetches the tensors that were saved last. Called when the backward pass begins.
    pub(crate) fn prefetch_last(&self) {
        let last = self.order.lock().iter().rev().find_map(Weak::upgrade);
        if let Some(last) = last {
            self.prefetch(&last);
        }
    }

    /// Fetches `saved` in the background if the limit allows it. Otherwise it is fetched when it is taken.
    fn prefetch(&self, saved: &Arc<OffloadedTensors>) {
        if saved.bytes <= self.transfers.limit.prefetch() {
            self.start_fetch(saved);
        }
    }

    /// Starts to fetch `saved` if it is on the host. All fetches use the stream of one worker.
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

    /// Copies the tensors to the host and drops them on the device, unless they were taken or fetched in the meantime.
    fn offload(&self) {
        let tensors = match &*self.state.lock() {
            TransferState::Offloading(tensors) => tensors.clone(),
            _ => return,
        };
        let devices: Vec<_> = tensors.iter().map(Tensor::device).collect();
        // Waits for the device. The lock is released, so that another thread may take the tensors in the meantime.
        let room = check_host_memory(self.bytes, OPTION);
        let data =
            room.and_then(|()| catch_message(|| tensors.into_iter().map(read).collect::<Vec<_>>()));
        let mut state = self.state.lock();
        if let TransferState::Offloading(_) = *state {
            *state = match data {
                Ok(data) => TransferState::OnHost(data.into_iter().zip(devices.clone()).collect()),
                Err(reason) => TransferState::Failed(reason),
            };
        }
        drop(state);
        devices.iter().for_each(flush);
    }

    /// Returns the data to transfer to the device; `None` if the tensors are on the device or already in flight.
    fn begin_fetch(&self) -> Option<Vec<(TensorData, Device)>> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, TransferState::Fetching) {
            TransferState::OnHost(data) => return Some(data),
            TransferState::Offloading(tensors) => *state = TransferState::OnDevice(tensors),
            other => *state = other,
        }
        None
    }

    /// Transfers the tensors to their devices.
    fn fetch(&self, data: Vec<(TensorData, Device)>) {
        let devices: Vec<_> = data.iter().map(|(_, device)| device.clone()).collect();
        let fetched = catch_message(|| {
            let data = data.into_iter();
            let tensors = data.map(|(data, device)| of_data(data, &device)).collect();
            devices.iter().for_each(flush);
            tensors
        });
        *self.state.lock() = fetched.map_or_else(TransferState::Failed, TransferState::OnDevice);
        self.is_fetched.notify_all();
    }

    /// Waits for the tensors and returns them.
    fn take(&self) -> Result<Vec<Tensor<1>>, String> {
        let mut state = self.state.lock();
        while let TransferState::Fetching = *state {
            self.is_fetched.wait(&mut state);
        }
        match std::mem::replace(&mut *state, TransferState::Fetching) {
            TransferState::OnDevice(tensors) => Ok(tensors),
            TransferState::Failed(reason) => Err(reason),
            _ => unreachable!("the fetch was started"),
        }
    }
}

fn bytes(tensor: &Tensor<1>) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}

#[cfg(test)]
thread_local! {
    /// One entry for each `take` on this thread, `true` if the tensors had been prefetched.
    static PREFETCHED: std::cell::RefCell<Vec<bool>> = const { std::cell::RefCell::new(Vec::new()) };
}
