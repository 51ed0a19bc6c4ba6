//! Attention as a composition of Burn's operations.
//!
//! The queries of a group of heads are one matrix, so that keys and values are not copied.

use backburn_base::{AnyTensor, in_type};
use burn::tensor::module::attention_fallback;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Device, Tensor};

use super::Problem;
use crate::elements::wide;

impl Problem {
    pub(super) fn composed(&self, inputs: [AnyTensor; 3]) -> AnyTensor {
        let dtype = inputs[0].dtype();
        let [query, key, value] = inputs.map(|it| in_type(it.of_dims::<4>(), wide(dtype)));
        let hidden = self.hidden(&query.device().inner());
        let hidden = hidden.map(|hidden| self.repeated(hidden));
        let query = query.reshape(self.grouped(self.head_dim));
        let options = AttentionModuleOptions {
            scale: Some(self.scale),
            ..AttentionModuleOptions::default()
        };
        let output = attention_fallback(query, key, value, hidden, None, options);
        in_type(output.reshape(self.output_shape()), dtype).into()
    }

    /// Returns the shape of a tensor with `columns`, a row for each query of a group of heads.
    fn grouped(&self, columns: usize) -> [usize; 4] {
        let rows = self.heads / self.groups * self.queries;
        [self.batch, self.groups, rows, columns]
    }

    /// Returns a mask for each group of heads. One for all heads is copied for the heads of a group only.
    fn repeated(&self, hidden: Tensor<4, Bool>) -> Tensor<4, Bool> {
        let [batch, heads, queries, keys] = hidden.dims();
        let groups = if heads == 1 { 1 } else { self.groups };
        let hidden = hidden.expand([batch, groups * self.heads / self.groups, queries, keys]);
        let [.., rows, _] = self.grouped(keys);
        hidden
            .reshape([batch, groups, rows, keys])
            .expand(self.grouped(keys))
    }

    /// Returns a mask of the hidden positions.
    fn hidden(&self, device: &Device) -> Option<Tensor<4, Bool>> {
        let sizes = [self.queries, self.keys];
        let mut hidden = Vec::from_iter(self.mask.clone());
        // `tril_mask` is `true` above the diagonal. The last query is at the place of the last key.
        let diagonal = self.keys as i64 - self.queries as i64;
        if self.options.is_causal {
            hidden.push(Tensor::<2, Bool>::tril_mask(sizes, diagonal, device).unsqueeze());
        }
        if let Some(window) = self.options.window.filter(|it| *it < self.keys) {
            let before = diagonal - window as i64;
            let before = Tensor::<2, Bool>::tril_mask(sizes, before, device);
            hidden.push(before.bool_not().unsqueeze());
        }
        hidden.into_iter().reduce(Tensor::bool_or)
    }
}
