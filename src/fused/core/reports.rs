use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};

use crate::report::StepReport;
use crate::weights::{FusedForm, ParameterReport};

/// What is told of passes.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    /// What the last one did.
    pub(super) last: StepReport,
    /// Whether a parameter got a gradient in it.
    pub(super) reached: bool,
    /// The parameters that the log has named for having got no gradient.
    told: HashSet<ParamId>,
}

impl Reports {
    /// Tells of a pass in which this has happened to the parameters.
    pub(super) fn tell<M: Module>(
        &mut self,
        form: &FusedForm<M>,
        ended: HashMap<ParamId, ParameterReport>,
        gradients_alive: Option<usize>,
    ) {
        let mut report = StepReport {
            copied: Some(0),
            gradients_alive,
            without_gradient: ended.len(),
            ..StepReport::default()
        };
        let all = ended.len();
        for (id, of) in ended {
            report.updated += usize::from(of.updated);
            report.vetoed += usize::from(of.vetoed);
            report.without_gradient -= usize::from(of.received);
            if of.updated {
                let copied = report.copied.zip(of.copied);
                report.copied = copied.map(|(copied, this)| copied + usize::from(this));
            }
            if !of.received && self.told.insert(id) {
                let path = form.path(id);
                log::warn!("parameter `{path}` got no gradient in this pass");
            }
        }
        self.reached = report.without_gradient < all;
        self.last = report;
    }
}
