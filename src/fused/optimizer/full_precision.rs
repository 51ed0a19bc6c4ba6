use backburn_base::host;
use backburn_optim::optimizer_record::{read, to_bytes};
use backburn_optim::recorded_residual;
use burn::module::Module;
use burn::tensor::{DType, FloatDType};

use super::FusedOptimizer;
use crate::files::{cast, leaf};
use crate::parameters::map_params;

impl<M: Module> FusedOptimizer<M> {
    /// Returns the current model in f32, with the low bits of its weights
    /// ([`WeightFormat`](crate::optim::WeightFormat)) restored, to save, to export, or to continue with other formats.
    ///
    /// In addition to the returned model, it holds one parameter and its state at a time.
    pub fn full_precision_model(&self) -> M {
        let optimizer = &self.core.ranks.optimizer;
        let joined = map_params(
            self.model(),
            // Only bf16 weights have low bits; the weight may have been cast.
            |param| param.is_initialized() && param.value().dtype() == DType::BF16,
            |id, high| {
                let record = optimizer.lock().record_of(id);
                let states = to_bytes(record).and_then(read);
                let states = states.expect("Burn reads its own record");
                let device = host(&high.device().inner());
                let recorded = |state| recorded_residual(state, &device);
                match states.values().find_map(recorded) {
                    Some(low_bits) => leaf(high.0, |high| low_bits.joined(high)).into(),
                    None => high,
                }
            },
        );
        self.core.with_graph_collected(
            cast(joined, FloatDType::F32).expect("every device computes in f32"),
        )
    }
}
