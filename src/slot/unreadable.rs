use std::mem::MaybeUninit;

use burn::tensor::Bytes;
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty};

/// `size` bytes that can't be read: who tries gets `reason`.
pub(super) fn nothing(reason: String, size: usize) -> Bytes {
    let nothing = Nothing { reason, size };
    // SAFETY: the bytes must be initialized as far as the controller hands them out, and it hands out none.
    unsafe { Bytes::from_controller(Box::new(nothing), size) }
}

struct Nothing {
    reason: String,
    size: usize,
}

impl Nothing {
    fn error(&self) -> AccessError {
        AccessError::Read(self.reason.clone())
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
}
