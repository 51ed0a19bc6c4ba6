use std::fmt::{Display, Formatter};

use super::MemoryTimeline;

/// Prints size, time and categories of the peak.
impl Display for MemoryTimeline {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let peak = self.peak();
        let bytes = peak.bytes;
        let mega = |bytes: usize| bytes as f64 / 1e6;
        writeln!(
            f,
            "peak {:.1} MB after {:.3} s, in phase: {}",
            mega(bytes.total()),
            peak.seconds,
            self.phase(peak)
        )?;
        match self.peak_reserved() {
            Some(reserved) => write!(
                f,
                "reserved at most {:.1} MB; the device does not report their use",
                mega(reserved)
            )?,
            None => write!(
                f,
                "parameters {:.1} MB, gradients {:.1} MB, optimizer state {:.1} MB, rest {:.1} MB",
                mega(bytes.parameters),
                mega(bytes.gradients),
                mega(bytes.optimizer_state),
                mega(bytes.rest)
            )?,
        }
        if self.lost > 0 {
            write!(f, "\n{} events did not fit in the log", self.lost)?;
        }
        Ok(())
    }
}
