//! What an optimizer holds for the parameters of a model, measured on a few elements of each.

use std::collections::{HashMap, hash_map};

use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};

use crate::caught::Caught;
use crate::error::FusedError;
use crate::memory;
use crate::optimizer_record::{compact_records, read, to_bytes};
use crate::parameters::{AnyTensor, list, with_rank};
use crate::policy::Update;
use crate::weights::Entry;

/// Elements of a slice of a parameter, at least.
const SLICE: usize = 1 << 14;
/// Rows of a slice, at least: fewer may be kept in another way.
const ROWS: usize = 128;
/// Elements that share a scale, at most.
const GROUP: usize = 64;

/// The parameters of `model`, on devices without autodiff; lazy ones are initialized.
pub(crate) fn parameters<M: Module>(model: &M) -> Vec<Entry> {
    let all = list(model).into_iter().map(Entry::of);
    let without_autodiff = all.map(|entry| Entry {
        device: entry.device.inner(),
        ..entry
    });
    without_autodiff.collect()
}

/// What an optimizer holds for all parameters.
#[derive(Clone, Debug, Default)]
pub(crate) struct States {
    /// Bytes of the states, by parameter, with the `overhead`; 0 for a parameter that is not trained.
    pub(crate) bytes: Vec<usize>,
    /// Bytes that the process holds for one state in addition to its tensors.
    overhead: usize,
    /// The most bytes that an update takes in addition to parameter, gradient and state, by parameter.
    pub(crate) updates: Vec<usize>,
    /// The most bytes of any update.
    pub(crate) update: usize,
}

impl States {
    pub(crate) fn sum(&self) -> usize {
        self.bytes.iter().sum()
    }

    /// Returns the bytes of the tensors alone, by parameter.
    pub(crate) fn tensors(&self) -> Vec<usize> {
        let bytes = self.bytes.iter();
        bytes.map(|it| it.saturating_sub(self.overhead)).collect()
    }
}

/// Measures what `optimizer` holds for `parameters`: steps zeros in the place of each, one after the other. Of a large one
/// three slices are enough, whose states grow evenly. If its `by_shape`, parameters of a shape are all alike to it.
///
/// # Errors
///
/// If the optimizer refuses a parameter, or panics.
pub(crate) fn measure(
    optimizer: &ModuleOptimizer,
    parameters: &[Entry],
    by_shape: bool,
) -> Result<States, FusedError> {
    let trained = parameters.iter().find(|it| it.is_trained());
    let overhead = trained.map_or(0, |it| overhead(optimizer, &it.device));
    let mut known = HashMap::new();
    let mut states = States {
        overhead,
        ..States::default()
    };
    for parameter in parameters {
        if !parameter.is_trained() {
            states.bytes.push(0);
            states.updates.push(0);
            continue;
        }
        let place = if by_shape { "" } else { &*parameter.path };
        let key = (parameter.shape.to_vec(), parameter.dtype, place);
        let stepped = match known.entry(key) {
            hash_map::Entry::Occupied(known) => *known.get(),
            hash_map::Entry::Vacant(unknown) => *unknown.insert(step_slices(optimizer, parameter)?),
        };
        // Where bytes are not counted, an update is taken to allocate one tensor.
        let update = stepped.update.unwrap_or(parameter.bytes());
        states.bytes.push(stepped.state + overhead);
        states.updates.push(update);
        states.update = states.update.max(update);
    }
    Ok(states)
}

/// Zeros, stepped.
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
    let update = one.update.zip(three.update);
    Ok(SliceBytes {
        state: line(one.state, grows as f64),
        update: update.map(|(one, three)| line(one, three.saturating_sub(one) as f64 / 2.0)),
    })
}

/// Bytes that the process holds for the state of a parameter in addition to its tensors, if they are counted.
fn overhead(optimizer: &ModuleOptimizer, device: &Device) -> usize {
    const PARAMETERS: usize = 64;
    let mut update = Update::new(optimizer.clone(), None);
    let zeros = || AnyTensor::from(Tensor::<2>::zeros([8, 8], device));
    let held = memory::left_by(device, || {
        for _ in 0..PARAMETERS {
            // A parameter that it refuses is reported where it is measured.
            drop(update.step("", ParamId::new(), zeros(), zeros(), false));
        }
    });
    held.map_or(0, |held| {
        held.saturating_sub(recorded(&update)) / PARAMETERS
    })
}

/// Bytes of the tensors of all states, as they are kept.
fn recorded(update: &Update) -> usize {
    // Not as stock Burn would record them.
    let record = compact_records(|| to_bytes(update.to_record()));
    let states = record.and_then(read).expect("Burn reads its own record");
    let tensors = states.values().flat_map(|state| &state.tensors);
    tensors.map(|tensor| tensor.byte_len()).sum()
}

/// The second step of zeros: the first makes the state.
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
    let mut update = Update::new(optimizer.clone(), None);
    let options = || (device, *dtype);
    let zeros = || -> AnyTensor {
        with_rank!(shape.len(), D => Tensor::<D>::zeros(shape.to_vec(), options()).into())
    };
    let unfit = |panic: Caught| FusedError::UnsupportedParameter {
        path: path.to_string(),
        reason: panic.message().to_string(),
    };
    let stepped = update.step(path, *id, zeros(), zeros(), false);
    stepped.result.map_err(unfit)?;
    let (value, gradient) = (stepped.value.unwrap_or_else(zeros), zeros());
    let step = || update.step(path, *id, value, gradient, false);
    let (stepped, most) = memory::most_during(device, step);
    stepped.result.map_err(unfit)?;
    drop(stepped.value);
    Ok(SliceBytes {
        state: recorded(&update),
        update: most,
    })
}
