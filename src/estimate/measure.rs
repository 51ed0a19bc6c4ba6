use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Tensor};

use crate::optimizer_record::{compact_records, read, written};
use crate::policy::Update;

/// What is known of a parameter before any training.
pub(super) struct Measured {
    pub(super) elements: usize,
    pub(super) dtype: DType,
    /// Bytes of its state after a step, if it is in training.
    pub(super) state: Option<usize>,
}

impl Measured {
    pub(super) fn bytes(&self) -> usize {
        self.elements * self.dtype.size()
    }
}

/// Measures every parameter of `model`, one after the other: steps those in training with zeros in their places, and
/// looks at the state.
pub(super) fn measure<M: Module>(model: &M, optimizer: &ModuleOptimizer) -> Vec<Measured> {
    let mut measure = Measure {
        names: Vec::new(),
        optimizer,
        measured: Vec::new(),
    };
    model.visit(&mut measure);
    measure.measured
}

struct Measure<'a> {
    names: Vec<String>,
    optimizer: &'a ModuleOptimizer,
    measured: Vec<Measured>,
}

impl ModuleVisitor for Measure<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.names.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.names.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base();
        self.measured.push(Measured {
            elements: value.shape().num_elements(),
            dtype: value.dtype(),
            state: value.is_require_grad().then(|| {
                let mut update = Update::new(self.optimizer.clone());
                let zeros = value.inner().zeros_like();
                let path = self.names.join(".");
                let stepped = update.step(&path, param.id, zeros.clone(), zeros, false);
                stepped.result.unwrap_or_else(|panic| panic.resume());
                // As it is kept, and not as stock Burn would record it.
                let record = compact_records(|| written(update.to_record()));
                let states = record.and_then(read).expect("Burn reads its own record");
                let state = states.get(&param.id.val()).into_iter();
                let tensors = state.flat_map(|state| &state.tensors);
                tensors.map(|tensor| tensor.byte_len()).sum()
            }),
        });
    }
}
