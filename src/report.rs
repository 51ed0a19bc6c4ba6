/// What the last step did, by number of parameters.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// Parameters the optimizer stepped.
    pub updated: usize,
    /// Trainable parameters that got no gradient in this pass.
    pub without_gradient: usize,
    /// Parameters that were copied to be updated, because something else held their value (a clone
    /// of the model, an activation). A debug log names each. The first update of a parameter is
    /// not counted. `None` where the backend can't tell (`ndarray`).
    pub copied: Option<usize>,
    /// The most parameter gradients that were alive at once, if
    /// [counted](crate::FusedOptimizer::count_gradients); those of the parameters
    /// [left](crate::FusedOptimizer::left) to the end of the pass not included.
    pub gradients_alive: Option<usize>,
    /// The global norm of the gradients before clipping, if they are
    /// [clipped](crate::FusedOptimizer::with_clipping) by it.
    pub gradient_norm: Option<f64>,
    /// What the gradients were multiplied by to clip them.
    pub clipping: Option<f64>,
}
