/// Statistics of a step, as returned by [`FusedOptimizer::last_step`](crate::FusedOptimizer::last_step).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// Number of parameters that the optimizer stepped.
    pub updated: usize,
    /// Number of trainable parameters without a gradient in this pass.
    pub without_gradient: usize,
    /// Number of parameters that were not updated in place, because a clone of the model or an activation held the
    /// value. A debug log names each. `None` on backends that can't report it (`ndarray`).
    pub copied: Option<usize>,
    /// Number of parameters whose gradient arrived and was not applied: a hook vetoed it, or it was not finite
    /// ([`Overflow::SkipParameter`](crate::Overflow::SkipParameter)).
    pub vetoed: usize,
    /// The global norm of the gradients before clipping, without the loss scale, if it was measured.
    pub gradient_norm: Option<f64>,
    /// The coefficient by which the gradients were [clipped](crate::FusedConfig::clipping).
    pub clipping: Option<f64>,
    /// The [scale of the loss](crate::FusedConfig::loss_scaling).
    pub loss_scale: Option<f64>,
    /// `true` if the scaled gradients overflowed. With
    /// [`Overflow::SkipStep`](crate::Overflow::SkipStep), no parameter was updated.
    pub overflowed: bool,
}
