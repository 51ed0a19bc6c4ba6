/// What the last step did, by number of parameters: [`FusedOptimizer::last_step`](crate::FusedOptimizer::last_step).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// Parameters the optimizer stepped.
    pub updated: usize,
    /// Trainable parameters that got no gradient in this pass.
    pub without_gradient: usize,
    /// Parameters that were copied to be updated, because something else held their value (a clone
    /// of the model, an activation). A debug log names each. `None` where the backend can't tell
    /// (`ndarray`).
    pub copied: Option<usize>,
    /// Parameters whose gradient arrived and was not used: a hook vetoed, or it was not finite
    /// ([`Overflow::SkipParameter`](crate::Overflow::SkipParameter)).
    pub vetoed: usize,
    /// The global norm of the gradients before clipping, free of the loss scale, if it was measured.
    pub gradient_norm: Option<f64>,
    /// What the gradients were multiplied by to
    /// [clip](crate::FusedConfig::clipping) them.
    pub clipping: Option<f64>,
    /// What the loss was [multiplied by](crate::FusedConfig::loss_scaling).
    pub loss_scale: Option<f64>,
    /// Whether the scaled gradients overflowed. With
    /// [`Overflow::SkipStep`](crate::Overflow::SkipStep), nothing was updated then.
    pub overflowed: bool,
}
