use std::mem::MaybeUninit;
use std::sync::Arc;

use burn::tensor::Bytes;
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty};

/// Bytes that can't be read: an access returns an error with the reason.
pub(super) struct UnreadableBytes {
    why: fn(&str) -> String,
    path: Arc<str>,
    size: usize,
    /// Zeros that are readable until the bytes are cloned.
    zeros: Option<Bytes>,
}

impl UnreadableBytes {
    /// Replaces `size` bytes of the parameter at `path`; `why` returns the message of an access.
    pub(super) fn new(why: fn(&str) -> String, path: Arc<str>, size: usize) -> Self {
        let zeros = None;
        Self {
            why,
            path,
            size,
            zeros,
        }
    }

    pub(super) fn bytes(self) -> Bytes {
        let size = self.size;
        // SAFETY: the bytes that the controller returns must be initialized: it returns none, or `size` zeros.
        unsafe { Bytes::from_controller(Box::new(self), size) }
    }

    /// Returns zeros whose clones are unreadable, for a backend that needs the address of the bytes.
    #[cfg(feature = "ndarray")]
    pub(super) fn once_cloned(self) -> Bytes {
        let zeros = Some(Bytes::from_bytes_vec(vec![0; self.size]));
        Self { zeros, ..self }.bytes()
    }

    fn error(&self) -> AccessError {
        AccessError::Read((self.why)(&self.path))
    }
}

impl AllocationController for UnreadableBytes {
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
        let zeros: &[u8] = self.zeros.as_ref().ok_or_else(|| self.error())?;
        // SAFETY: initialized bytes are valid as `MaybeUninit`, and shared bytes are never written.
        Ok(unsafe { std::slice::from_raw_parts(zeros.as_ptr().cast(), zeros.len()) })
    }

    fn capacity(&self) -> usize {
        self.size
    }

    fn duplicate(&self) -> Option<Box<dyn AllocationController>> {
        let clone = Self::new(self.why, self.path.clone(), self.size);
        Some(Box::new(clone))
    }
}
