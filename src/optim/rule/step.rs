use burn::optim::LearningRate;

/// A step of a parameter, or what the gradient of a micro-batch does to its states: an
/// [`ElementWise`](crate::optim::ElementWise) optimizer makes its rule of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Step {
    /// Zero for a micro-batch that is not the last of its group: the parameter does not move.
    pub learning_rate: LearningRate,
    /// Its number, from one on. A group of micro-batches is one step.
    pub time: i32,
    /// Whether there was no state before.
    pub is_first: bool,
    /// Whether the gradient is added to those of the micro-batches before it: states have decayed with the first.
    pub adds: bool,
}

impl Step {
    /// What a state is multiplied by that decays by this `factor` once a step.
    pub fn decay(&self, factor: f64) -> f64 {
        if self.adds { 1.0 } else { factor }
    }
}
