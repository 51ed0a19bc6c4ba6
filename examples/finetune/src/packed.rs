//! Documents in packed rows, which attend only to themselves.

use burn::prelude::*;
use burn::tensor::TensorData;

use crate::decoder::LAST;

/// The place of each token of a batch in its document.
pub struct Packed {
    shape: [usize; 2],
    /// The number of the document in the row.
    documents: Vec<i32>,
    /// The position in the document.
    positions: Vec<usize>,
}

impl Packed {
    /// Reads the ends of documents in `targets`; `None` if each row has one document.
    pub fn read(targets: &Tensor<2, Int>) -> Option<Self> {
        let shape = targets.dims();
        let targets: Vec<i64> = targets.to_data().iter().collect();
        if !targets.contains(&LAST) {
            return None;
        }
        let (mut documents, mut positions) = (Vec::new(), Vec::new());
        for row in targets.chunks(shape[1]) {
            let (mut document, mut position) = (0, 0);
            for target in row {
                documents.push(document);
                positions.push(position);
                position += 1;
                if *target == LAST {
                    document += 1;
                    position = 0;
                }
            }
        }
        Some(Self {
            shape,
            documents,
            positions,
        })
    }

    pub fn rows(&self) -> usize {
        self.shape[0]
    }

    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Returns where a token (row) and another (column) are of different documents. Shape: `[rows, 1, length, length]`.
    pub fn apart(&self, device: &Device) -> Tensor<4, Bool> {
        let [rows, length] = self.shape;
        let documents = TensorData::new(self.documents.clone(), [rows, 1, length, 1]);
        let documents = Tensor::<4, Int>::from_data(documents, device);
        let shape = [rows, 1, length, length];
        let others = documents.clone().swap_dims(2, 3).expand(shape);
        documents.expand(shape).not_equal(others)
    }
}
