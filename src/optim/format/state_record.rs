use burn::optim::{StateSink, StateSource};
use burn::tensor::{DType, Device, Shape, Tensor};

use super::record::{RecordedFormat, flat, loaded, scalar, unlike_a_parameter};
use super::root::{Coding, GROUP, Root};
use super::state::{PackedState, StateTensor};
use crate::optimizer_record::records_are_compact;

impl<const D: usize> StateTensor<D> {
    /// Writes the state as `{prefix}.{leaf}`.
    pub(crate) fn flatten(&self, prefix: &str, leaf: &str, sink: &mut StateSink) {
        match self {
            Self::Packed(packed) if records_are_compact() => {
                packed.flatten(&format!("{prefix}.{leaf}"), sink);
            }
            state => sink.push_tensor(prefix, leaf, state.clone().full().into_data()),
        }
    }

    /// Reads what [`flatten`](Self::flatten) has written: in codes again, if it was, and where the `format` of the
    /// record says so.
    pub(crate) fn unflatten(
        prefix: &str,
        leaf: &str,
        root: Root,
        format: &RecordedFormat,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<Self> {
        let coding = format.width.map(|width| Coding { root, width });
        match Self::unflatten_full(prefix, leaf, source, device) {
            Some(state) => Some(state.conformed(coding)),
            None => {
                let prefix = format!("{prefix}.{leaf}");
                PackedState::unflatten(&prefix, coding?, source, device).map(Self::Packed)
            }
        }
    }

    /// Reads one that was written in full, and keeps it so.
    pub(crate) fn unflatten_full(
        prefix: &str,
        leaf: &str,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<Self> {
        let data = source.take_tensor(prefix, leaf)?;
        loaded(data, device).map(Self::Full)
    }
}

impl<const D: usize> PackedState<D> {
    fn flatten(&self, prefix: &str, sink: &mut StateSink) {
        sink.push_tensor(
            prefix,
            "codes",
            unlike_a_parameter::<D>(self.codes.to_data()),
        );
        sink.push_tensor(
            prefix,
            "scales",
            unlike_a_parameter::<D>(self.scales.to_data()),
        );
        for (dim, size) in self.shape.iter().enumerate() {
            sink.push_scalar(prefix, &format!("dim_{dim}"), (*size).into());
        }
    }

    fn unflatten(
        prefix: &str,
        coding: Coding,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<Self> {
        let dims = (0..D).map(|dim| scalar(source, prefix, &format!("dim_{dim}")));
        let dims = dims.collect::<Option<Vec<usize>>>()?;
        let elements = dims
            .iter()
            .try_fold(1_usize, |product, dim| product.checked_mul(*dim))?;
        let codes = flat(source.take_tensor(prefix, "codes")?, DType::U32)?;
        let scales = flat(source.take_tensor(prefix, "scales")?, DType::F32)?;
        let groups = elements.div_ceil(GROUP);
        let per_group = coding.width.group_bytes() / 4;
        let fits = scales.num_elements() == groups && codes.num_elements() == groups * per_group;
        fits.then(|| Self {
            codes: Tensor::from_data(codes, (device, DType::U32)),
            scales: Tensor::from_data(scales, (device, DType::F32)),
            coding,
            shape: Shape::from(dims),
        })
    }
}
