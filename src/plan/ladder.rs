use std::fmt::{Display, Formatter};

use burn::config::Config;
use serde::{Deserialize, Serialize};

/// What a technique does to the result of a training, as a [`Rung`] tells.
#[derive(Config, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fidelity {
    /// The same to the bit on CPU backends, but for the random numbers of blocks.
    Exact,
    /// The same but for rounding; batch normalization and dropout see parts of the batch.
    Rounding,
    /// The optimizer's state takes the gradients of micro-batches one by one.
    Approximation,
    /// Weights or states have fewer bits.
    Precision,
}

/// One way to train on a [`Ladder`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rung {
    /// What is done.
    pub name: String,
    /// Bytes at the peak where the model computes; on a CPU, of the whole process. If no pass has come to its end, what one takes at least.
    pub device_bytes: usize,
    /// Bytes on the host, if that is not where the model computes.
    pub host_bytes: usize,
    /// Seconds of a step, as far as passes that update nothing tell; without what is on its way to the host. None if not even
    /// the smallest pass was sure to fit, so that none was run.
    pub seconds: Option<f64>,
    /// Whether it changes the result.
    pub fidelity: Fidelity,
}

/// All ways to train that a [`Planner`](crate::Planner) has looked at, and the one that was taken: print it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ladder {
    /// Bytes that there are.
    pub budget: usize,
    /// Items in a step.
    pub batch: usize,
    /// Stock Burn, for comparison, if it was measured.
    pub stock: Option<Rung>,
    /// From fused training alone on.
    pub rungs: Vec<Rung>,
    /// Index of the one that was taken; none if nothing fits.
    pub taken: Option<usize>,
    /// Whether the device was looked at between kernels only, so that what is said of it is estimated with a margin.
    pub estimated: bool,
}

impl Display for Ladder {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let mega = |bytes: usize| bytes as f64 / 1e6;
        writeln!(
            f,
            "budget {:.2} MB, {} items in a step",
            mega(self.budget),
            self.batch
        )?;
        let has_host = self.rungs.iter().any(|rung| rung.host_bytes > 0);
        let host = if has_host { "host (MB)" } else { "" };
        let width = self.rungs.iter().map(|rung| rung.name.len()).max();
        let width = width.unwrap_or(0).max(12);
        let (bytes, step) = ("peak (MB)", "step (s)");
        writeln!(f, "  {:<width$}{bytes:>12}{host:>12}{step:>10}  result", "")?;
        let stock = self.stock.iter().map(|rung| (None, rung));
        let rungs = self.rungs.iter().enumerate();
        for (place, rung) in stock.chain(rungs.map(|(place, rung)| (Some(place), rung))) {
            let is_taken = place.is_some() && place == self.taken;
            let host = if has_host {
                format!("{:.2}", mega(rung.host_bytes))
            } else {
                String::new()
            };
            let result = match rung.fidelity {
                Fidelity::Exact => "the same",
                Fidelity::Rounding => "the same but for rounding",
                Fidelity::Approximation => "approximated",
                Fidelity::Precision => "fewer bits",
            };
            let fits = match rung.device_bytes.checked_sub(self.budget) {
                Some(over) if over > 0 => format!("{:.2} MB too many", mega(over)),
                _ if rung.seconds.is_none() => "before a pass, which does not fit".to_string(),
                _ => "fits".to_string(),
            };
            let seconds = rung.seconds.map(|seconds| format!("{seconds:.3}"));
            writeln!(
                f,
                "{} {:<width$}{:>12.2}{host:>12}{:>10}  {result}, {fits}",
                if is_taken { '>' } else { ' ' },
                rung.name,
                mega(rung.device_bytes),
                seconds.unwrap_or_default(),
            )?;
        }
        if self.estimated {
            writeln!(
                f,
                "the device was looked at between kernels only: the peaks are estimated with a margin"
            )?;
        }
        if self.taken.is_none() {
            writeln!(f, "nothing fits")?;
        }
        Ok(())
    }
}

/// So that JSON reads back what was written.
pub(super) fn in_millionths(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}
