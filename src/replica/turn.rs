use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use parking_lot::{Condvar, Mutex};

use super::group::Group;
use crate::device::hand_over;
use crate::error::FusedError;
use crate::lock;

/// So long others wait for the turn of a group that shows no sign of life.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whose turn it is to draw random numbers.
///
/// Burn's generators are one a process: what one rank draws, another lacks. So ranks seed and draw in turns, and
/// what each of them draws does not depend on the others.
///
/// The ranks of a group wait for each other as long as it takes. Other groups don't: the closure that has the turn may
/// wait for them.
static TURNS: Turns = Turns::new(PATIENCE);

struct Turns {
    holder: Mutex<Option<Holder>>,
    free: Condvar,
    patience: Duration,
}

/// Who has the turn, and how many times over.
struct Holder {
    key: usize,
    group: usize,
    times: usize,
    /// The last sign of life.
    seen: Instant,
}

/// Another group has kept the turn without a sign of life: it may wait for who waits for its turn.
#[derive(Debug, PartialEq, Eq)]
struct Kept;

impl Kept {
    fn error(self) -> FusedError {
        let reason = format!(
            "the closure of other replicas has had the turn to draw random numbers for {PATIENCE:?} without reading a \
             parameter: if it waits for this step, each waits for the other. Call the step outside of it, or build one \
             of them with `FusedConfig::draws_random_numbers` false"
        );
        FusedError::Replicas { reason }
    }
}

impl Turns {
    const fn new(patience: Duration) -> Self {
        Self {
            holder: Mutex::new(None),
            free: Condvar::new(),
            patience,
        }
    }

    /// Waits for the turn; those with its key may take it again.
    fn take(&self, key: usize, group: usize) -> Result<(), Kept> {
        let mut holder = self.holder.lock();
        loop {
            match holder.as_mut() {
                Some(other) if other.key != key && other.group == group => {
                    self.free.wait(&mut holder);
                }
                Some(other) if other.key != key => {
                    let until = other.seen + self.patience;
                    if Instant::now() >= until {
                        return Err(Kept);
                    }
                    self.free.wait_until(&mut holder, until);
                }
                Some(own) => {
                    own.times += 1;
                    own.seen = Instant::now();
                    return Ok(());
                }
                None => {
                    *holder = Some(Holder {
                        key,
                        group,
                        times: 1,
                        seen: Instant::now(),
                    });
                    return Ok(());
                }
            }
        }
    }

    fn show_life(&self, key: usize) {
        let mut holder = self.holder.lock();
        if let Some(own) = holder.as_mut().filter(|holder| holder.key == key) {
            own.seen = Instant::now();
        }
    }

    fn give_back(&self) {
        let mut holder = self.holder.lock();
        let held = holder.as_mut().expect("a turn has a holder");
        held.times -= 1;
        if held.times == 0 {
            *holder = None;
            self.free.notify_all();
        }
    }
}

/// A turn, until it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Turn {
    device: Device,
}

impl Turn {
    /// Waits for the turn to draw on `device`, for all threads of the `group` that work for `owner`; those may take it
    /// again. An error if another group keeps it and may wait for this one.
    pub(crate) fn take<T>(
        owner: &Arc<T>,
        group: &Arc<Group>,
        device: &Device,
    ) -> Result<Self, FusedError> {
        lock::check_none_held("the turn of other ranks is waited for");
        let taken = TURNS.take(address(owner), address(group));
        taken.map_err(Kept::error)?;
        let device = device.clone();
        Ok(Self { device })
    }

    /// Lets those who wait for a turn of `owner` know that it goes on.
    pub(crate) fn show_life<T>(owner: &Arc<T>) {
        TURNS.show_life(address(owner));
    }
}

fn address<T>(owner: &Arc<T>) -> usize {
    Arc::as_ptr(owner) as usize
}

impl Drop for Turn {
    fn drop(&mut self) {
        // What `fusion` has gathered draws its numbers when it runs.
        hand_over(&self.device);
        TURNS.give_back();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const SHORT: Duration = Duration::from_millis(300);

    #[test]
    fn nobody_waits_for_ever_for_the_turn_of_another_group() {
        let turns = Turns::new(SHORT);
        turns.take(1, 1).unwrap();
        assert_eq!(turns.take(2, 2), Err(Kept));
        // It is still that of the first, as often as it wants.
        turns.take(1, 1).unwrap();
        turns.give_back();
        assert_eq!(turns.take(2, 2), Err(Kept));
        turns.give_back();
        turns.take(2, 2).unwrap();
    }

    /// Of the same group, or of one that goes on.
    #[test]
    fn who_takes_long_is_waited_for() {
        for shows_life in [false, true] {
            let turns = &Turns::new(SHORT);
            turns.take(1, 1).unwrap();
            thread::scope(|scope| {
                let group = if shows_life { 2 } else { 1 };
                let waits = scope.spawn(move || turns.take(2, group));
                for _ in 0..40 {
                    thread::sleep(SHORT / 20);
                    if shows_life {
                        turns.show_life(1);
                    }
                }
                turns.give_back();
                assert_eq!(waits.join().unwrap(), Ok(()));
            });
        }
    }
}
