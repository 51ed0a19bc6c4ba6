use std::fmt::{Display, Formatter};

use burn::module::Module;
use serde::{Deserialize, Serialize};

use super::list::list;

/// What tells a model from another: paths and shapes of its float parameters, in its order. Values, float types and what is frozen
/// do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelKey {
    /// Number of float parameters.
    pub parameters: usize,
    /// Number of their elements.
    pub elements: usize,
    /// A hash of paths and shapes.
    pub hash: u64,
}

impl ModelKey {
    /// The key of `model`, whose lazy parameters stay lazy.
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
            // No byte of a path, nor the begin of one.
            key.add(&[0xff]);
        }
        key
    }

    /// FNV-1a: a hash that is the same in every build.
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
