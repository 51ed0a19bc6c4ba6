use std::fmt::{Display, Formatter};

use burn::module::Module;
use serde::{Deserialize, Serialize};

use super::list::list;

/// Identity of a model: paths and shapes of all its float parameters, frozen ones and running statistics included, in its order.
/// Values, float types, and whether a parameter is frozen, do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelKey {
    /// Number of float parameters.
    pub parameters: usize,
    /// Number of elements of these parameters.
    pub elements: usize,
    /// Hash of paths and shapes.
    pub hash: u64,
}

impl ModelKey {
    /// Returns the key of `model`. Lazy parameters stay lazy.
    pub fn of<M: Module>(model: &M) -> Self {
        let mut key = Self {
            parameters: 0,
            elements: 0,
            hash: 0xcbf2_9ce4_8422_2325,
        };
        for parameter in list(model) {
            let shape = parameter.param.shape();
            key.parameters += 1;
            key.elements += shape.num_elements();
            key.add(parameter.path.as_bytes());
            for dim in shape.iter() {
                key.add(&(*dim as u64).to_le_bytes());
            }
            // A separator that is not a byte of UTF-8.
            key.add(&[0xff]);
        }
        key
    }

    /// Adds bytes to the FNV-1a hash, which is the same in every build.
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl Display for ModelKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} float parameters with {} elements ({:016x})",
            self.parameters, self.elements, self.hash
        )
    }
}
