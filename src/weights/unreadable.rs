use std::mem::MaybeUninit;
use std::sync::Arc;

use burn::tensor::Bytes;
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty};

/// Bytes that can't be read: who tries is told why.
#[derive(Clone)]
pub(super) struct Nothing {
    why: fn(&str) -> String,
    path: Arc<str>,
    size: usize,
}

impl Nothing {
    /// In the place of so many bytes of the parameter at `path`, of which `why` says why.
    pub(super) fn new(why: fn(&str) -> String, path: Arc<str>, size: usize) -> Self {
        Self { why, path, size }
    }

    #[cfg(feature = "flex")]
    pub(super) fn bytes(self) -> Bytes {
        let size = self.size;
        // SAFETY: the bytes must be initialized as far as the controller hands them out, and it hands out none.
        unsafe { Bytes::from_controller(Box::new(self), size) }
    }

    /// Zeros whose clones are nothing, for a backend that asks where bytes lie before it takes them.
    #[cfg(feature = "ndarray")]
    pub(super) fn once_cloned(self) -> Bytes {
        let size = self.size;
        let zeros = Zeros {
            zeros: Bytes::from_bytes_vec(vec![0; size]),
            cloned: self,
        };
        // SAFETY: the controller hands out `size` zeros.
        unsafe { Bytes::from_controller(Box::new(zeros), size) }
    }

    fn error(&self) -> AccessError {
        AccessError::Read((self.why)(&self.path))
    }
}

impl AllocationController for Nothing {
    fn alloc_align(&self) -> usize {
        align_of::<u64>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(
        &mut self,
        _policy: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        Err(self.error())
    }

    fn memory(&self, _policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        Err(self.error())
    }

    fn capacity(&self) -> usize {
        self.size
    }

    fn duplicate(&self) -> Option<Box<dyn AllocationController>> {
        Some(Box::new(self.clone()))
    }
}

#[cfg(feature = "ndarray")]
struct Zeros {
    zeros: Bytes,
    cloned: Nothing,
}

#[cfg(feature = "ndarray")]
impl AllocationController for Zeros {
    fn alloc_align(&self) -> usize {
        self.cloned.alloc_align()
    }

    fn property(&self) -> AllocationProperty {
        self.cloned.property()
    }

    unsafe fn memory_mut(
        &mut self,
        _policy: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        Err(self.cloned.error())
    }

    fn memory(&self, _policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let zeros: &[u8] = &self.zeros;
        // SAFETY: what is initialized may be read as what may not be, and nobody can write through what is shared.
        Ok(unsafe { std::slice::from_raw_parts(zeros.as_ptr().cast(), zeros.len()) })
    }

    fn duplicate(&self) -> Option<Box<dyn AllocationController>> {
        self.cloned.duplicate()
    }
}
