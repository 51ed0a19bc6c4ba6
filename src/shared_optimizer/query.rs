//! Queries of an optimizer, which steps a single element to answer them.

use std::collections::BTreeSet;

use backburn_base::caught::catch;
use backburn_base::{AnyTensor, MAX_DIMS, host, is_remote, with_dims};
use backburn_optim::call::{Call, Query};
use backburn_optim::formats_may_refuse;
use backburn_optim::optimizer_record::{RecordedState, read, write};
use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Device, Shape, Tensor};

use super::states::{joined, written};
use super::{SharedOptimizer, step_one};

impl SharedOptimizer {
    /// Returns why the optimizer can't step a parameter of this id, path and shape on `device`. It loads the state from an empty
    /// record, and steps a single element in this process if formats may be unsupported.
    pub(crate) fn unsupported(
        &self,
        device: &Device,
        id: ParamId,
        path: &str,
        dims: usize,
        dtype: DType,
        elements: usize,
    ) -> Option<String> {
        if dims > MAX_DIMS {
            return Some(format!(
                "Burn's optimizers step tensors of up to {MAX_DIMS} dimensions, and it has {dims}: freeze it, or keep it in another shape"
            ));
        }
        let nothing = write([RecordedState::none(id, path, dims)]);
        let nothing = nothing.expect("Burn writes what has no state");
        let load = || self.fresh().load_record(joined([nothing]));
        let (loaded, call) = Call::default().make(load);
        loaded.unwrap_or_else(|panic| panic.resume());
        let formats_may_refuse = call.may_have_formats && formats_may_refuse(dtype, elements);
        // Only a remote device may lack what an optimizer needs.
        if call.refusal.is_some() || !is_remote(device) && !formats_may_refuse {
            return call.refusal;
        }
        let host = host(device);
        let one =
            || with_dims!(dims, D => AnyTensor::from(Tensor::<D>::ones([1; D], (&host, dtype))));
        let call = Call {
            query: Some(Query {
                device: device.clone(),
                elements,
            }),
            ..Call::default()
        };
        // A panic on such a small parameter is not a refusal.
        let step = || step_one(&mut self.fresh(), 0.0.into(), path, id, one(), one());
        call.make(step).1.refusal
    }

    /// Returns the names of the tensors in the state of a parameter with this path and number of dimensions, as in the
    /// optimizer's records. Burn has no interface for these names, so this steps a single element on the default device.
    pub(crate) fn state_names(&self, id: ParamId, path: &str, dims: usize) -> Vec<String> {
        let one = || with_dims!(dims, D => AnyTensor::from(Tensor::<D>::ones([1; D], &Device::default())));
        let stepped = catch(|| {
            let mut optimizer = self.fresh();
            step_one(&mut optimizer, 0.0.into(), path, id, one(), one());
            read(written(optimizer.to_record()))
        });
        let Ok(Ok(states)) = stepped else {
            return Vec::new();
        };
        let state = states.get(&id.val());
        let names = state.into_iter().flat_map(|state| {
            let tensors = state.tensors.iter();
            tensors.map(|tensor| state.name_in_state(&tensor.name).to_string())
        });
        names.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Returns `true` if `fresh`, an optimizer without states, updates a parameter with this number of dimensions in the same way under
/// both names, as in one parameter group. An optimizer whose updates differ by chance counts as equal; formats of states are not compared.
pub(crate) fn updates_are_equal(
    fresh: &ModuleOptimizer,
    dims: usize,
    names: [(ParamId, &str); 2],
) -> bool {
    let device = host(&Device::default());
    // Two by two elements if there are two dimensions.
    let shape: Vec<_> = (1..=dims)
        .map(|dim| match dims {
            1 => 4,
            _ if dim + 2 > dims => 2,
            _ => 1,
        })
        .collect();
    let tensor = |values: [f64; 4]| {
        let values = Tensor::<1>::from_data(values, (&device, DType::F32));
        with_dims!(dims, D => AnyTensor::from(values.reshape::<D, _>(Shape::from(shape.clone()))))
    };
    let updated = |(id, path): (ParamId, &str)| {
        let mut optimizer = fresh.clone();
        // Signs, sizes and a norm that momentum, decay, clipping and AMSGrad treat in different ways.
        let gradients = [
            [0.3, -2.0, 0.01, 1.0],
            [-0.1, 0.5, -0.02, -0.05],
            [4.0, -8.0, 0.0, 3.0],
        ];
        let steps = || {
            gradients
                .into_iter()
                .fold(tensor([1.0, -0.5, 0.3, -2.0]), |value, gradient| {
                    step_one(
                        &mut optimizer,
                        0.1.into(),
                        path,
                        id,
                        value,
                        tensor(gradient),
                    )
                })
        };
        let updated = Call::default().make(steps).0;
        updated.ok().map(|value| value.0.into_data())
    };
    let [before, after] = names.map(updated);
    before == after || before != updated(names[0])
}

/// Returns `true` if `fresh`, an optimizer without states, orthogonalizes the update of this parameter, as Muon does.
pub(crate) fn orthogonalizes(fresh: &ModuleOptimizer, id: ParamId, path: &str) -> bool {
    let device = host(&Device::default());
    let matrix = |[a, b]: [f64; 2]| -> AnyTensor {
        Tensor::<2>::from_data([[a, b], [b, a]], (&device, DType::F32)).into()
    };
    let (weight, gradient) = (matrix([0.0, 0.0]), matrix([1e-3, 0.9e-3]));
    let step = || {
        let stepped = step_one(&mut fresh.clone(), 1.0.into(), path, id, weight, gradient);
        let stepped = stepped.of_dims::<2>().into_data();
        stepped.iter::<f32>().collect::<Vec<_>>()
    };
    // The nearest orthogonal matrix is the identity. Other optimizers move all elements about as far.
    let moved = Call::default().make(step).0;
    moved.is_ok_and(|moved| moved.len() == 4 && moved[1].abs() < 0.6 * moved[0].abs())
}
