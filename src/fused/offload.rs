//! Weights that wait in host memory come over before they are read.

use std::sync::Arc;

use burn::module::Module;

use super::FusedOptimizer;
use crate::pass::{Course, Foresight};
use crate::slot::FetchAhead;

impl<M: Module> FusedOptimizer<M> {
    /// What brings weights to the device before they are read, if any wait.
    pub(super) fn foresight(&self) -> Option<Arc<dyn Foresight>> {
        let placement = self.form.placement()?;
        placement.waiting_blocks()?;
        let course = self.course.clone().unwrap_or_default();
        let slots = self.form.slots().clone();
        Some(Arc::new(FetchAhead::new(slots, placement, course)))
    }

    /// Learns from a pass in which order the blocks run; from the first one, which of them stay on the device.
    pub(super) fn learn_course(&mut self, course: Course) {
        let Some(waiting) = self.session.placement().and_then(|p| p.waiting_blocks()) else {
            return;
        };
        if course.is_empty() {
            return;
        }
        if self.course.is_none() {
            self.form.slots().keep_copies(&course, waiting);
        }
        self.course = Some(course);
    }
}
