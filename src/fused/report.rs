//! The report of a step.

use std::collections::HashSet;

use burn::module::{Module, ParamId};

use crate::weights::{AttachedModule, ParameterReport};

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
    /// The global norm of the gradients before clipping, without the loss scale, if it was measured; of the last micro-batch alone
    /// if gradients are accumulated in the optimizer state.
    pub gradient_norm: Option<f64>,
    /// The coefficient by which the gradients were [clipped](crate::FusedConfig::clipping), 1 if the norm was at most the maximum;
    /// `None` without clipping, and in a step that was skipped.
    pub clipping: Option<f64>,
    /// The [scale of the loss](crate::FusedConfig::loss_scaling); `None` without scaling.
    pub loss_scale: Option<f64>,
    /// `true` if the scaled gradients overflowed. With
    /// [`Overflow::SkipStep`](crate::Overflow::SkipStep), no parameter was updated.
    pub overflowed: bool,
}

/// Per-pass statistics for `last_step` and the log.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    /// The report of the last pass.
    pub(super) last: StepReport,
    /// The parameters that the log has reported as having no gradient.
    reported: HashSet<ParamId>,
}

impl Reports {
    /// Records the report of a pass, and logs parameters without a gradient.
    pub(super) fn report<M: Module>(
        &mut self,
        attached: &AttachedModule<M>,
        ended: Vec<(ParamId, ParameterReport)>,
    ) {
        let mut report = StepReport {
            copied: Some(0),
            ..StepReport::default()
        };
        for (id, of) in ended {
            match of {
                ParameterReport::NoGradient => {
                    report.without_gradient += 1;
                    if self.reported.insert(id) {
                        let path = attached.path(id);
                        log::warn!("parameter `{path}` received no gradient in this pass");
                    }
                }
                ParameterReport::Received => {}
                ParameterReport::Vetoed => report.vetoed += 1,
                ParameterReport::Updated { copied } => {
                    report.updated += 1;
                    let sum = report.copied.zip(copied);
                    report.copied = sum.map(|(sum, copied)| sum + usize::from(copied));
                }
            }
        }
        self.last = report;
    }
}
