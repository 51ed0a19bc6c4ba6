use std::sync::Arc;

use burn::tensor::Device;
use parking_lot::{Condvar, Mutex};

use crate::device::hand_over;

/// Whose turn it is to draw random numbers.
///
/// Burn's generators are one a process: what one rank draws, another lacks. So ranks seed and draw in turns, and
/// what each of them draws does not depend on the others.
static TURNS: Turns = Turns {
    holder: Mutex::new(None),
    free: Condvar::new(),
};

struct Turns {
    holder: Mutex<Option<Holder>>,
    free: Condvar,
}

/// Who has the turn, and how many times over.
struct Holder {
    key: usize,
    times: usize,
}

/// A turn, until it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Turn {
    device: Device,
}

impl Turn {
    /// Waits for the turn to draw on `device`, for all threads that work for `owner`; those may take it again.
    pub(crate) fn take<T>(owner: &Arc<T>, device: &Device) -> Self {
        let key = Arc::as_ptr(owner) as usize;
        let mut holder = TURNS.holder.lock();
        while holder.as_ref().is_some_and(|holder| holder.key != key) {
            TURNS.free.wait(&mut holder);
        }
        let holder = holder.get_or_insert(Holder { key, times: 0 });
        holder.times += 1;
        let device = device.clone();
        Self { device }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // What `fusion` has gathered draws its numbers when it runs.
        hand_over(&self.device);
        let mut holder = TURNS.holder.lock();
        let held = holder.as_mut().expect("a turn has a holder");
        held.times -= 1;
        if held.times == 0 {
            *holder = None;
            TURNS.free.notify_all();
        }
    }
}
