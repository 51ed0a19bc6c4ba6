//! The learning rate over the steps.

use std::f64::consts::PI;

/// A warm-up, then a cosine down to a tenth.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// The highest learning rate.
    pub rate: f64,
    pub warm_up: usize,
    /// Steps in all.
    pub steps: usize,
}

impl Schedule {
    /// Returns the learning rate of a step. Steps count from 0.
    pub fn rate(&self, step: usize) -> f64 {
        if step < self.warm_up {
            return self.rate * (step + 1) as f64 / self.warm_up as f64;
        }
        let left = self.steps.saturating_sub(self.warm_up).max(1);
        let progress = (step - self.warm_up) as f64 / left as f64;
        self.rate * (0.1 + 0.9 * 0.5 * (1.0 + (PI * progress).cos()))
    }
}
