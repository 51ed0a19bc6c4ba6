//! Measurement of the optimizer states of a model, on a few elements of each parameter.

use std::collections::{HashMap, HashSet, hash_map};

use backburn_base::caught::Caught;
use backburn_base::{AnyTensor, list, with_dims};
use backburn_memory as memory;
use backburn_optim::optimizer_record::{compact_records, read, to_bytes};
use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};

use crate::error::FusedError;
use crate::shared_optimizer::SharedOptimizer;
use crate::weights::Entry;

/// Minimum number of elements of a slice.
const SLICE: usize = 1 << 14;
/// Minimum number of rows of a slice. Optimizers may store smaller ones in another format.
const ROWS: usize = 128;
/// Maximum number of elements that share a scale.
const GROUP: usize = 64;

/// Returns the parameters of `model`, on devices without autodiff. Lazy parameters are initialized.
pub(crate) fn parameters<M: Module>(model: &M) -> Vec<Entry> {
    let mut seen = HashSet::new();
    // Two layers can share a frozen parameter.
    let all = list(model).into_iter().map(Entry::of);
    let all = all.filter(|entry| seen.insert(entry.id));
    let without_autodiff = all.map(|entry| Entry {
        device: entry.device.inner(),
        ..entry
    });
    without_autodiff.collect()
}

/// Bytes of the optimizer states of all parameters.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateBytes {
    /// Bytes of the state of each parameter, including `overhead`; 0 for a parameter that is not trained.
    pub(crate) bytes: Vec<usize>,
    /// Bytes that the process holds for one state in addition to its tensors.
    overhead: usize,
    /// Peak bytes of the update of any parameter, in addition to parameter, gradient and state.
    pub(crate) update: usize,
}

impl StateBytes {
    /// Returns the bytes of the tensors alone, by parameter.
    pub(crate) fn tensors(&self) -> Vec<usize> {
        let bytes = self.bytes.iter();
        bytes.map(|it| it.saturating_sub(self.overhead)).collect()
    }
}

/// Measures the states of `optimizer` for `parameters` by steps on zeros, one parameter after the other. Large
/// parameters are extrapolated from three slices, if the states of the slices grow linearly. With `by_shape`, one
/// parameter of each shape is measured.
///
/// # Errors
///
/// If the optimizer does not support a parameter, or panics.
pub(crate) fn measure(
    optimizer: &ModuleOptimizer,
    parameters: &[Entry],
    by_shape: bool,
) -> Result<StateBytes, FusedError> {
    // States that the optimizer has belong to whole parameters, and parts are measured.
    let optimizer = &SharedOptimizer::new(optimizer.clone(), None).fresh();
    let trained = parameters.iter().find(|it| it.is_trained());
    let overhead = trained.map_or(0, |it| overhead(optimizer, &it.device));
    let mut known = HashMap::new();
    let mut states = StateBytes {
        overhead,
        ..StateBytes::default()
    };
    for parameter in parameters {
        if !parameter.is_trained() {
            states.bytes.push(0);
            continue;
        }
        let place = if by_shape { "" } else { &*parameter.path };
        let key = (parameter.shape.to_vec(), parameter.dtype, place);
        let stepped = match known.entry(key) {
            hash_map::Entry::Occupied(known) => *known.get(),
            hash_map::Entry::Vacant(unknown) => *unknown.insert(step_slices(optimizer, parameter)?),
        };
        // Where bytes are not counted, assume that an update allocates one tensor.
        let update = stepped.update.unwrap_or(parameter.bytes());
        states.bytes.push(stepped.state + overhead);
        states.update = states.update.max(update);
    }
    Ok(states)
}

/// Bytes of the state and of the update of a stepped slice.
#[derive(Clone, Copy, Debug)]
struct SliceBytes {
    state: usize,
    update: Option<usize>,
}

fn step_slices(optimizer: &ModuleOptimizer, parameter: &Entry) -> Result<SliceBytes, FusedError> {
    let shape = &parameter.shape.to_vec();
    let whole = || step(optimizer, parameter, shape);
    let Some((axis, rows)) = shape.iter().copied().enumerate().max_by_key(|(_, n)| *n) else {
        return whole();
    };
    let row = parameter.elements() / rows.max(1);
    let thin = SLICE.div_ceil(row.max(1)).max(ROWS).next_multiple_of(GROUP);
    if rows <= 3 * thin {
        return whole();
    }
    let slices = [thin, 2 * thin, 3 * thin].map(|rows| {
        let mut shape = shape.clone();
        shape[axis] = rows;
        step(optimizer, parameter, &shape)
    });
    let [one, two, three] = slices;
    let (one, two, three) = (one?, two?, three?);
    let grows = two.state.saturating_sub(one.state);
    if two.state + grows != three.state {
        return whole();
    }
    let more = (rows - thin) as f64 / thin as f64;
    let line = |begin: usize, grows: f64| begin + (grows * more).ceil() as usize;
    let updates = one.update.zip(two.update).zip(three.update);
    let update = match updates {
        None => None,
        Some(((one, two), three)) if (one + three).abs_diff(2 * two) <= NOISE => {
            Some(line(one, three.saturating_sub(one) as f64 / 2.0))
        }
        Some(_) => update_in_proportion(optimizer, parameter)?,
    };
    Ok(SliceBytes {
        state: line(one.state, grows as f64),
        update,
    })
}

/// Bytes by which the update of a slice may differ from a line.
const NOISE: usize = 1 << 14;

/// Extrapolates the bytes of the update from two smaller tensors with the same aspect ratio as the parameter: Muon's temporary
/// squares of a matrix don't grow linearly with one dimension.
fn update_in_proportion(
    optimizer: &ModuleOptimizer,
    parameter: &Entry,
) -> Result<Option<usize>, FusedError> {
    let part = |divisor: usize| -> Vec<usize> {
        let shape = parameter.shape.iter();
        shape.map(|size| size.div_ceil(divisor)).collect()
    };
    let elements = |shape: &[usize]| shape.iter().product::<usize>() as f64;
    let mut large = 1;
    while elements(&part(4 * large)) >= SLICE as f64 {
        large *= 2;
    }
    let [small, large] = [part(2 * large), part(large)];
    let [a, b] = [elements(&small), elements(&large)];
    let bytes = |shape: &[usize]| Ok::<_, FusedError>(step(optimizer, parameter, shape)?.update);
    let updates = bytes(&small)?.zip(bytes(&large)?);
    Ok(updates.map(|(small, large)| {
        let slope = large.saturating_sub(small) as f64 / (b - a);
        large + (slope * (parameter.elements() as f64 - b)).ceil() as usize
    }))
}

/// Returns the bytes that the process holds for one state in addition to its tensors; 0 if they are not counted.
fn overhead(optimizer: &ModuleOptimizer, device: &Device) -> usize {
    const PARAMETERS: usize = 64;
    let mut optimizer = SharedOptimizer::new(optimizer.clone(), None);
    let zeros = || AnyTensor::from(Tensor::<2>::zeros([8, 8], device));
    let (_, growth) = memory::growth_of(device, || {
        for _ in 0..PARAMETERS {
            // An unsupported parameter is reported by `step`.
            drop(optimizer.step("", ParamId::new(), zeros(), zeros(), true));
        }
    });
    growth.map_or(0, |growth| {
        growth.left.saturating_sub(recorded(&optimizer)) / PARAMETERS
    })
}

/// Returns the bytes of the tensors of all states, in their own format.
fn recorded(optimizer: &SharedOptimizer) -> usize {
    let record = compact_records(|| to_bytes(optimizer.to_record()));
    let states = record.and_then(read).expect("Burn reads its own record");
    let tensors = states.values().flat_map(|state| &state.tensors);
    tensors.map(|tensor| tensor.byte_len()).sum()
}

/// Steps zeros twice, and measures the second step, because the first one allocates the state.
fn step(
    optimizer: &ModuleOptimizer,
    parameter: &Entry,
    shape: &[usize],
) -> Result<SliceBytes, FusedError> {
    let Entry {
        path,
        id,
        device,
        dtype,
        ..
    } = parameter;
    let mut optimizer = SharedOptimizer::new(optimizer.clone(), None);
    let options = || (device, *dtype);
    let zeros = || -> AnyTensor {
        with_dims!(shape.len(), D => Tensor::<D>::zeros(shape.to_vec(), options()).into())
    };
    let unfit = |panic: Caught| FusedError::UnsupportedParameter {
        path: path.to_string(),
        reason: panic.message().to_string(),
    };
    let stepped = optimizer.step(path, *id, zeros(), zeros(), true);
    stepped.result.map_err(unfit)?;
    let (value, gradient) = (stepped.value.unwrap_or_else(zeros), zeros());
    let step = || optimizer.step(path, *id, value, gradient, true);
    let (stepped, growth) = memory::growth_of(device, step);
    stepped.result.map_err(unfit)?;
    drop(stepped.value);
    Ok(SliceBytes {
        state: recorded(&optimizer),
        update: growth.map(|growth| growth.peak),
    })
}
