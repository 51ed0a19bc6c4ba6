//! Compute copies of parameters: when they are fetched and dropped, by [`Residency`].
//!
//! | residency | a copy is fetched | and dropped |
//! |---|---|---|
//! | [`Aliased`](Residency::Aliased) | never: the master's value is used | |
//! | [`Cached`](Residency::Cached) | with the first read, and after every update | after the next copy has arrived; from the host, before the next copy is fetched |
//! | [`OnDemand`](Residency::OnDemand) | with a read; from the host and for a block, before the block | with the graph that has read it, or with the run of the block |
//! | [`Gathered`](Residency::Gathered) | with a read | with the graph that has read it |
//!
//! If a parameter on the host is read outside of a recomputed block, the graph of the whole pass holds its copy. The copy is
//! therefore [pinned](ComputeCopy::pin).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backburn_base::AnyTensor;
use burn::tensor::{DType, Device};

use super::master_param::{MasterParam, missing_message};
use crate::device::AsyncErrors;
use crate::error::FusedError;
use crate::placement::{RankContext, Residency};
use crate::threads::lock::{Level, Leveled, leveled};

/// The lifetime of a copy that is fetched for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyLifetime {
    /// Dropped with the graph that has read it.
    Graph,
    /// Kept for further reads in the same run of a block.
    BlockRun,
}

/// The copy of a parameter with which one rank computes.
#[derive(Debug)]
pub(super) struct ComputeCopy {
    master: Arc<MasterParam>,
    context: Arc<RankContext>,
    /// The compute device, without autodiff.
    pub(super) device: Arc<Device>,
    /// The compute type.
    pub(super) dtype: DType,
    /// `true` if the master is on the host.
    pub(super) is_offloaded: bool,
    /// The residency that the context assigns; see [`residency`](Self::residency) for the current one.
    assigned: Residency,
    /// `true` if a copy fetched on demand is cached from now on.
    is_pinned: AtomicBool,
    /// `None` if there is no copy, or the master's value is used.
    fetched: Leveled<Option<Box<Fetched>>>,
}

/// A value that was fetched from the master.
#[derive(Debug)]
struct Fetched {
    value: AnyTensor,
    /// The version of the master's value.
    version: u64,
}

impl ComputeCopy {
    /// Creates the copy of a rank that computes on `device`. Nothing is fetched.
    pub(super) fn new(
        master: Arc<MasterParam>,
        context: Arc<RankContext>,
        device: Arc<Device>,
    ) -> Self {
        let location = &master.storage.location;
        let copy = Self {
            dtype: context.policy.compute_dtype(master.dtype),
            is_offloaded: location.is_host,
            assigned: context.residency(master.id, location, master.dtype, &device),
            is_pinned: AtomicBool::new(false),
            fetched: leveled(Level::ComputeCopy, None),
            master,
            context,
            device,
        };
        if let Some(engine) = copy.context.engine.as_ref().filter(|_| copy.is_offloaded) {
            engine.transfers.limit.add_parameter(copy.bytes());
        }
        copy
    }

    /// Returns `true` if the master's value is used.
    pub(super) fn is_aliased(&self) -> bool {
        self.assigned == Residency::Aliased
    }

    /// Returns the current residency.
    fn residency(&self) -> Residency {
        match self.assigned {
            Residency::OnDemand if self.is_pinned.load(Ordering::Relaxed) => Residency::Cached,
            assigned => assigned,
        }
    }

    /// Returns `true` if the value is fetched whenever it is read.
    pub(super) fn is_on_demand(&self) -> bool {
        self.residency() == Residency::OnDemand
    }

    /// Returns `true` if the value is fetched from the host whenever it is read.
    pub(super) fn is_fetched_from_host(&self) -> bool {
        self.is_offloaded && self.is_on_demand()
    }

    /// Returns the bytes of a copy.
    pub(super) fn bytes(&self) -> usize {
        self.master.elements() * self.dtype.size()
    }

    /// Returns the bytes that the rank holds between two passes, in addition to those of masters.
    pub(super) fn cached_bytes(&self) -> usize {
        let is_here = self.context.owns(self.master.id) && !self.is_offloaded;
        let replicates = self.context.replicates(self.master.id);
        match self.residency() {
            Residency::Cached => self.bytes(),
            // Counted as if each rank had its own device.
            Residency::Aliased | Residency::OnDemand
                if !is_here && !self.is_offloaded && replicates =>
            {
                self.bytes()
            }
            _ => 0,
        }
    }

    /// Caches the copy on the device from now on, if this rank keeps such weights.
    pub(super) fn pin(&self) {
        let is_pinned = self.context.replicates(self.master.id);
        self.is_pinned.store(is_pinned, Ordering::Relaxed);
    }

    /// Pins the copy of a parameter that is read outside of a block: the graph holds it anyway.
    pub(super) fn pin_for_pass(&self) {
        if !self.is_fetched_from_host() {
            return;
        }
        self.pin();
        if !self.is_on_demand() {
            log::warn!(
                "parameter `{}` is read outside of a recomputed block under gradient checkpointing, so its weights stay on \
                 the device. Its optimizer state is on the host",
                self.master.path
            );
        }
    }

    /// Returns the value in the compute type, or the copy of an earlier read.
    ///
    /// # Panics
    ///
    /// Panics if the value can't be fetched to the device.
    pub(super) fn value(&self, lifetime: CopyLifetime) -> AnyTensor {
        if self.is_aliased() {
            return self.master.value();
        }
        let mut fetched = self.fetched.lock();
        let residency = self.residency();
        let version = self.master.version();
        let current = fetched.take().filter(|copy| copy.version == version);
        let value = match current {
            Some(copy) => copy.value,
            None => self.fetch_value().unwrap_or_else(|error| panic!("{error}")),
        };
        let keeps_copy = match residency {
            Residency::Aliased | Residency::Gathered => false,
            Residency::Cached => true,
            Residency::OnDemand => lifetime == CopyLifetime::BlockRun,
        };
        if keeps_copy {
            let value = value.clone();
            *fetched = Some(Box::new(Fetched { value, version }));
        }
        value
    }

    /// Fetches the value to the compute device, in the compute type.
    fn fetch_value(&self) -> Result<AnyTensor, FusedError> {
        self.transfer(self.master.value(), &self.device, self.dtype)
    }

    /// Moves `value` to `device` and casts it to `dtype`.
    pub(super) fn transfer(
        &self,
        value: AnyTensor,
        device: &Device,
        dtype: DType,
    ) -> Result<AnyTensor, FusedError> {
        self.context
            .transfer(&self.master.path, value, device, dtype)
    }

    /// Returns the master's value in the storage type on `device`. If it can't be fetched, returns an existing copy.
    pub(super) fn stored_on(&self, device: &Device) -> Result<AnyTensor, String> {
        let master = &self.master;
        let fetched = self.fetched.lock();
        let copy = fetched
            .as_ref()
            .filter(|copy| copy.value.dtype() == master.dtype && copy.value.device() == *device);
        if let Some(copy) = copy
            && copy.version == master.version()
        {
            return Ok(copy.value.clone());
        }
        let value = match master.find() {
            Some(value) => {
                let transfer = self.transfer(value, device, master.dtype);
                transfer.map_err(|error| error.to_string())
            }
            None => Err(missing_message(&master.path)),
        };
        value.or_else(|reason| copy.map(|copy| copy.value.clone()).ok_or(reason))
    }

    /// Returns `true` if a copy of the master's current value is here.
    pub(super) fn is_current(&self) -> bool {
        self.has_current(&self.fetched.lock())
    }

    fn has_current(&self, fetched: &Option<Box<Fetched>>) -> bool {
        let copy = fetched.as_ref();
        copy.is_some_and(|copy| copy.version == self.master.version())
    }

    /// Fetches a copy of the master's current value. If the master's device may be lost, the old copy is kept until
    /// the new one has arrived. If a prefetch fails, the read that needs the copy reports the error.
    pub(super) fn fetch(&self) -> Result<(), FusedError> {
        let mut fetched = self.fetched.lock();
        if self.has_current(&fetched) || self.master.find().is_none() {
            return Ok(());
        }
        if self.is_offloaded {
            *fetched = None;
        }
        let version = self.master.version();
        let value = self.fetch_value()?;
        *fetched = Some(Box::new(Fetched { value, version }));
        Ok(())
    }

    /// Drops a copy that was fetched for a read.
    pub(super) fn drop_fetched(&self) {
        // If another thread holds the lock, it uses or replaces the copy.
        if self.residency() != Residency::Cached
            && let Some(mut fetched) = self.fetched.try_lock()
        {
            *fetched = None;
        }
    }

    /// Replaces a cached copy after an update.
    pub(super) fn update_cached(&self) -> Result<(), FusedError> {
        let is_cached = self.residency() == Residency::Cached && self.fetched.lock().is_some();
        if is_cached { self.fetch() } else { Ok(()) }
    }

    /// Replaces a cached copy at the end of the pass.
    pub(super) fn refresh(&self) {
        // With a copy on every rank, a lost owner loses no weight.
        let survives_owner = self.residency() == Residency::Cached && !self.is_offloaded;
        let refreshed = match survives_owner {
            true => self.fetch(),
            false => self.update_cached(),
        };
        // If the fetch fails, the old copy remains, or the next read reports the error.
        if let Err(error) = refreshed {
            log::debug!("{error}");
        }
    }

    /// Adds the copy to a check for asynchronous errors.
    pub(super) fn add_to_check(&self, errors: &mut AsyncErrors) {
        if let Some(copy) = &*self.fetched.lock() {
            errors.add(&self.master.path, &*copy.value);
        }
    }
}
