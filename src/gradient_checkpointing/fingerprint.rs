use std::hash::{DefaultHasher, Hasher};

use super::activations::{Activations, each};

/// Hashes of a block's outputs, to detect a recomputation that drew other random numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint(Vec<u64>);

impl Fingerprint {
    /// Hashes `output`. Waits for the device.
    pub(super) fn of<Y: Activations>(output: &Y) -> Self {
        let mut hashes = Vec::new();
        each(output, |tensor| {
            let mut hasher = DefaultHasher::new();
            hasher.write(tensor.clone().inner().into_data().as_bytes());
            hashes.push(hasher.finish());
        });
        Self(hashes)
    }
}
