//! What an optimizer holds for the parameters of a model, measured without any of them.

use std::collections::HashMap;
use std::time::Instant;

use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Device, Tensor};

use crate::memory::{self, MemoryRecorder};
use crate::optimizer_record::{compact_records, read, written};
use crate::parameters::list;
use crate::policy::Update;

use super::error::PlanError;
use super::optimizer::PlannedOptimizer;

/// Of larger parameters, what goes by the number of elements alone is measured with so many.
const SAMPLE: usize = 1 << 14;
/// Elements that share a scale; a multiple of them has as many bytes an element as any other.
const GROUP: usize = 64;

/// What is known of a parameter.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    path: String,
    shape: Vec<usize>,
    elements: usize,
    pub(super) dtype: DType,
    pub(super) trained: bool,
}

impl Parameter {
    pub(super) fn bytes(&self) -> usize {
        self.elements * self.dtype.size()
    }

    pub(super) fn elements(&self) -> usize {
        self.elements
    }
}

/// The parameters of `model`, which are initialized.
pub(super) fn parameters<M: Module>(model: &M) -> Vec<Parameter> {
    let all = list(model).into_iter().map(|parameter| {
        let value = parameter.param.value();
        Parameter {
            path: parameter.path,
            shape: value.shape().to_vec(),
            elements: value.shape().num_elements(),
            dtype: value.dtype(),
            trained: value.is_require_grad(),
        }
    });
    all.collect()
}

/// What an optimizer holds for all parameters.
#[derive(Clone, Debug, Default)]
pub(super) struct States {
    /// Bytes of the states, by parameter; those of one that is not trained are none.
    pub(super) bytes: Vec<usize>,
    /// The most bytes that an update takes beside parameter, gradient and state.
    pub(super) update: usize,
    /// Seconds of all updates.
    pub(super) seconds: f64,
}

impl States {
    pub(super) fn sum(&self) -> usize {
        self.bytes.iter().sum()
    }
}

/// One parameter, stepped.
#[derive(Clone, Copy, Debug)]
struct Stepped {
    state: usize,
    update: usize,
    seconds: f64,
}

/// Measures what `optimizer` holds for `parameters` on `device`: steps zeros in the place of each, one after the other.
/// Takes the memory of the largest parameter a few times; of an optimizer that is element by element, next to none.
pub(super) fn measure<O: PlannedOptimizer>(
    optimizer: &O,
    parameters: &[Parameter],
    device: &Device,
) -> Result<States, PlanError> {
    let optimizer = optimizer.build();
    let overhead = overhead(&optimizer, device)?;
    let mut known = HashMap::new();
    let mut states = States::default();
    for parameter in parameters {
        if !parameter.trained {
            states.bytes.push(0);
            continue;
        }
        let stepped = if O::ELEMENT_WISE {
            let sample = parameter.elements.min(SAMPLE);
            let key = (sample, parameter.dtype);
            let stepped = match known.get(&key) {
                Some(stepped) => *stepped,
                None => {
                    let stepped = step(&optimizer, "", &[sample], parameter.dtype, device)?;
                    known.insert(key, stepped);
                    stepped
                }
            };
            stepped.scaled(sample, parameter.elements)
        } else {
            let Parameter {
                path, shape, dtype, ..
            } = parameter;
            step(&optimizer, path, shape, *dtype, device)?
        };
        states.bytes.push(stepped.state + overhead);
        states.update = states.update.max(stepped.update);
        states.seconds += stepped.seconds;
    }
    Ok(states)
}

impl Stepped {
    /// The same for a parameter of more elements.
    fn scaled(self, from: usize, to: usize) -> Self {
        if from == to {
            return self;
        }
        let groups = to.div_ceil(GROUP);
        let of_groups = |bytes: usize| (bytes * groups).div_ceil(from / GROUP);
        // What does not grow with the parameter is no part of the update.
        let grows = self.update > from;
        Self {
            state: of_groups(self.state),
            update: if grows { of_groups(self.update) } else { 0 },
            seconds: self.seconds * to as f64 / from as f64,
        }
    }
}

/// Bytes that the process holds for the state of a parameter beside its tensors.
fn overhead(optimizer: &ModuleOptimizer, device: &Device) -> Result<usize, PlanError> {
    const PARAMETERS: usize = 64;
    // What a device with memory of its own does not have.
    if device.memory_pool_usage().is_some() {
        return Ok(0);
    }
    let mut update = Update::new(optimizer.clone());
    let zeros = || Tensor::<2>::zeros([8, 8], device);
    let before = memory::live(device)?;
    for _ in 0..PARAMETERS {
        let stepped = update.step("", ParamId::new(), zeros(), zeros(), false);
        stepped.result.unwrap_or_else(|panic| panic.resume());
    }
    let held = memory::live(device)?.saturating_sub(before);
    Ok((held.saturating_sub(recorded(&update))) / PARAMETERS)
}

/// Bytes of the tensors of all states, as they are kept.
fn recorded(update: &Update) -> usize {
    let record = compact_records(|| written(update.to_record()));
    let states = record.and_then(read).expect("Burn reads its own record");
    let tensors = states.values().flat_map(|state| &state.tensors);
    tensors.map(|tensor| tensor.byte_len()).sum()
}

fn step(
    optimizer: &ModuleOptimizer,
    path: &str,
    shape: &[usize],
    dtype: DType,
    device: &Device,
) -> Result<Stepped, PlanError> {
    match *shape {
        [a, b] => step_of(optimizer, path, [a, b], dtype, device),
        [a, b, c] => step_of(optimizer, path, [a, b, c], dtype, device),
        [a, b, c, d] => step_of(optimizer, path, [a, b, c, d], dtype, device),
        [a, b, c, d, e] => step_of(optimizer, path, [a, b, c, d, e], dtype, device),
        _ => step_of(optimizer, path, [shape.iter().product()], dtype, device),
    }
}

/// The second step of a parameter of zeros: the first makes the state.
fn step_of<const D: usize>(
    optimizer: &ModuleOptimizer,
    path: &str,
    shape: [usize; D],
    dtype: DType,
    device: &Device,
) -> Result<Stepped, PlanError> {
    let elements: usize = shape.iter().product();
    let mut update = Update::new(optimizer.clone());
    let id = ParamId::new();
    let zeros = || Tensor::<D>::zeros(shape, (device, dtype));
    let before = memory::live(device)?;
    let stepped = update.step(path, id, zeros(), zeros(), false);
    stepped.result.unwrap_or_else(|panic| panic.resume());
    let value = stepped.value.unwrap_or_else(zeros);
    let held = memory::live(device)?.saturating_sub(before);
    // A record of a large state would be a second one.
    let state = match elements > SAMPLE {
        true => held.saturating_sub(elements * dtype.size()),
        false => recorded(&update),
    };
    let gradient = zeros();
    let recorder = MemoryRecorder::start_peaks(device)?;
    memory::enter(memory::Phase::Other);
    let begun = Instant::now();
    let stepped = update.step(path, id, value, gradient, false);
    let seconds = begun.elapsed().as_secs_f64();
    stepped.result.unwrap_or_else(|panic| panic.resume());
    let timeline = recorder.finish()?;
    let before = timeline.samples.first().map_or(0, |s| s.bytes.total());
    Ok(Stepped {
        state,
        update: timeline.peak().bytes.total().saturating_sub(before),
        seconds,
    })
}
