use std::hash::{DefaultHasher, Hasher};

use super::activations::{Activations, each};

/// What tells the outputs of a block apart that has seen other random numbers: a hash of each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint(Vec<u64>);

impl Fingerprint {
    /// Reads `output`, which waits for its device.
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
