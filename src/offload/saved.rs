//! Tensors that are saved for the backward pass in the memory of the host. They leave while the forward pass goes on, and the last ones
//! come back first, each while the backward pass is at what was saved after it.

#[cfg(all(test, feature = "flex"))]
mod tests;

use std::sync::{Arc, Weak};

use burn::tensor::{Device, Tensor, TensorData};
use parking_lot::{Condvar, Mutex};

use super::room::check_room;
use super::transfers::Transfers;
use crate::device::{caught, hand_over, of_data, read};

/// Asks for it.
const OPTION: &str = "GradientCheckpointingConfig::offload_inputs";

/// What a pass has saved on the host.
#[derive(Debug)]
pub(crate) struct SavedTensors {
    transfers: Arc<Transfers>,
    /// Whether whoever saves or takes something waits for it: a recording knows one thread at a time.
    waits: bool,
    /// In the order in which they were saved.
    order: Mutex<Vec<Weak<Saved>>>,
}

/// Tensors that were saved together, without autodiff. The rank in their type doesn't matter.
pub(crate) struct Saved {
    bytes: usize,
    stage: Mutex<Stage>,
    is_back: Condvar,
}

enum Stage {
    /// On the device, until a copy of them is on the host.
    Leaving(Vec<Tensor<1>>),
    /// On the host alone, for a device.
    Away(Vec<(TensorData, Device)>),
    /// On the way back.
    Coming,
    /// On the device.
    Here(Vec<Tensor<1>>),
    /// Lost on the way, for a reason.
    Lost(String),
}

impl SavedTensors {
    pub(crate) fn new(transfers: Arc<Transfers>, waits: bool) -> Self {
        Self {
            transfers,
            waits,
            order: Mutex::default(),
        }
    }

    /// Whether a tensor on `device` would leave it.
    pub(crate) fn leaves(&self, device: &Device) -> bool {
        self.transfers.is_apart(device)
    }

    /// Saves `tensors` on the host. They are on the device until they have arrived.
    pub(crate) fn save(&self, tensors: Vec<Tensor<1>>) -> Arc<Saved> {
        let bytes = tensors.iter().map(bytes).sum();
        let saved = Arc::new(Saved {
            bytes,
            stage: Mutex::new(Stage::Leaving(tensors)),
            is_back: Condvar::new(),
        });
        self.order.lock().push(Arc::downgrade(&saved));
        if self.waits {
            saved.leave();
        } else {
            let limit = self.transfers.limit.of_saved(bytes);
            let leaving = Arc::downgrade(&saved);
            self.transfers.to_host.give(bytes, limit, move || {
                if let Some(saved) = leaving.upgrade() {
                    saved.leave();
                }
            });
        }
        saved
    }

    /// The tensors where they were, or why they can't be there. Those that were saved before them are sent for.
    pub(crate) fn take(&self, saved: Arc<Saved>) -> Result<Vec<Tensor<1>>, String> {
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
        SENT_FOR.with_borrow_mut(|all| all.push(!matches!(*saved.stage.lock(), Stage::Away(_))));
        self.send_for(&saved);
        let tensors = saved.take();
        if let Some(before) = before {
            self.send_for_ahead(&before);
        }
        tensors
    }

    /// Sends for those that were saved last: the backward pass begins.
    pub(crate) fn send_for_last(&self) {
        let last = self.order.lock().iter().rev().find_map(Weak::upgrade);
        if let Some(last) = last {
            self.send_for_ahead(&last);
        }
    }

    /// Has `saved` come back beside what this thread does, as far as so much may be under way. Else it comes when it is taken.
    fn send_for_ahead(&self, saved: &Arc<Saved>) {
        if saved.bytes <= self.transfers.limit.of_reads() {
            self.send_for(saved);
        }
    }

    /// Has `saved` come back, if it has left: from one stream and its memory, whoever takes it.
    fn send_for(&self, saved: &Arc<Saved>) {
        let Some(data) = saved.what_has_to_come() else {
            return;
        };
        if self.waits {
            return saved.come(data);
        }
        let coming = saved.clone();
        let worker = &self.transfers.to_device;
        worker.give(saved.bytes, usize::MAX, move || coming.come(data));
    }
}

impl Saved {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Leaves the device, if nobody has taken the tensors or sent for them.
    fn leave(&self) {
        let tensors = match &*self.stage.lock() {
            Stage::Leaving(tensors) => tensors.clone(),
            _ => return,
        };
        let devices: Vec<_> = tensors.iter().map(Tensor::device).collect();
        // Waits for the device. Meanwhile somebody may take them.
        let room = check_room(self.bytes, OPTION);
        let data = room.and_then(|()| caught(|| tensors.into_iter().map(read).collect::<Vec<_>>()));
        let mut stage = self.stage.lock();
        if let Stage::Leaving(_) = *stage {
            *stage = match data {
                Ok(data) => Stage::Away(data.into_iter().zip(devices.clone()).collect()),
                Err(reason) => Stage::Lost(reason),
            };
        }
        drop(stage);
        devices.iter().for_each(hand_over);
    }

    /// Lets them stay if they have not left.
    fn what_has_to_come(&self) -> Option<Vec<(TensorData, Device)>> {
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Coming) {
            Stage::Away(data) => return Some(data),
            Stage::Leaving(tensors) => *stage = Stage::Here(tensors),
            other => *stage = other,
        }
        None
    }

    /// Comes back to the device.
    fn come(&self, data: Vec<(TensorData, Device)>) {
        let devices: Vec<_> = data.iter().map(|(_, device)| device.clone()).collect();
        let data = data.into_iter();
        let back = caught(|| data.map(|(data, device)| of_data(data, &device)).collect());
        devices.iter().for_each(hand_over);
        *self.stage.lock() = back.map_or_else(Stage::Lost, Stage::Here);
        self.is_back.notify_all();
    }

    /// The tensors, when they are back.
    fn take(&self) -> Result<Vec<Tensor<1>>, String> {
        let mut stage = self.stage.lock();
        while let Stage::Coming = *stage {
            self.is_back.wait(&mut stage);
        }
        match std::mem::replace(&mut *stage, Stage::Coming) {
            Stage::Here(tensors) => Ok(tensors),
            Stage::Lost(reason) => Err(reason),
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
    static SENT_FOR: std::cell::RefCell<Vec<bool>> = const { std::cell::RefCell::new(Vec::new()) };
}
