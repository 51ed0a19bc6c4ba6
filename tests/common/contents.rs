//! Access to the contents of an optimizer record, for tests that damage it.

use std::collections::BTreeMap;

use burn::optim::OptimizerRecord;
use burn::tensor::{Bytes, DType};
use burn_pack::{Reader, Scalar, Writer};

#[derive(Clone)]
pub struct Contents {
    pub tensors: Vec<burn_pack::Tensor>,
    pub scalars: BTreeMap<String, Scalar>,
    pub paths: BTreeMap<String, String>,
}

impl Contents {
    pub fn of(record: OptimizerRecord) -> Self {
        let reader = Reader::from_bytes(record.into_bytes().unwrap().shared()).unwrap();
        Self {
            scalars: reader.scalars().clone(),
            paths: reader.metadata().clone(),
            tensors: reader.into_tensors().unwrap(),
        }
    }

    /// With one tensor replaced.
    pub fn with_tensor(&self, index: usize, dtype: DType, shape: &[usize], bytes: Bytes) -> Self {
        let mut damaged = self.clone();
        let before = &self.tensors[index];
        damaged.tensors[index] =
            burn_pack::Tensor::new(before.name.clone(), dtype, shape, before.param_id, bytes);
        damaged
    }

    pub fn into_record(self) -> OptimizerRecord {
        let mut writer = Writer::new(self.tensors);
        for (name, scalar) in self.scalars {
            writer = writer.with_scalar(&name, scalar);
        }
        for (id, path) in self.paths {
            writer = writer.with_metadata(&id, &path);
        }
        OptimizerRecord::from_bytes(writer.into_bytes().unwrap()).unwrap()
    }
}
