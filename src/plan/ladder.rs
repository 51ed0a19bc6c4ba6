use std::fmt::{Display, Formatter};

use burn::config::Config;
use serde::{Deserialize, Serialize};

use super::choice::{Choice, Level, in_micros};
use super::measured::Measured;
use super::optimizer::PlannedOptimizer;
use super::technique::Technique;

/// What a technique does to the result of a training, as a [`Rung`] tells.
#[derive(Config, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fidelity {
    /// The same to the bit on CPU backends, but for the random numbers of blocks.
    Exact,
    /// The same but for rounding; batch normalization and dropout see parts of the batch.
    Rounding,
    /// Weights or states have fewer bits.
    Precision,
}

/// One way to train on a [`Ladder`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rung {
    /// What is done.
    pub name: String,
    /// Bytes at the peak where the model computes; on a CPU, of the whole process.
    pub device_bytes: usize,
    /// Bytes on the host, if that is not where the model computes.
    pub host_bytes: usize,
    /// Seconds of a step, as far as passes that update nothing tell; without what is on its way to the host.
    pub seconds: f64,
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

impl Ladder {
    pub(super) fn new<O: PlannedOptimizer>(measured: &Measured<O>, budget: usize) -> Self {
        let mut ladder = Self {
            budget,
            batch: measured.batch,
            stock: measured.stock().map(|(device_bytes, seconds)| Rung {
                name: "stock Burn".to_string(),
                device_bytes,
                host_bytes: 0,
                seconds: in_micros(seconds),
                fidelity: Fidelity::Exact,
            }),
            rungs: Vec::new(),
            taken: None,
            estimated: measured.apart,
        };
        for level in measured.levels() {
            let fit = measured.choice(&level, budget);
            let fits = fit.is_some() && ladder.taken.is_none();
            // Beyond what was taken, a rung shows what it would bring.
            let shown = match ladder.taken {
                None => fit.or_else(|| measured.least(&level)),
                Some(_) => next(measured, &level).or(fit),
            };
            let Some(choice) = shown else { continue };
            let rung = Rung {
                name: name(&level, &choice),
                device_bytes: choice.device,
                host_bytes: choice.host,
                seconds: choice.seconds,
                fidelity: fidelity(&level, &choice),
            };
            if ladder.rungs.iter().all(|other| other.name != rung.name) {
                ladder.rungs.push(rung);
                if fits {
                    ladder.taken = Some(ladder.rungs.len() - 1);
                }
            }
        }
        ladder
    }
}

/// What the technique that a level adds would bring at most.
fn next<O: PlannedOptimizer>(measured: &Measured<O>, level: &Level) -> Option<Choice> {
    match level.last? {
        Technique::Blocks => {
            let width = measured.widths.iter().position(|it| it.dtype.is_none())?;
            let pass = measured.passes(level, width).into_iter().next()?;
            measured.all_twice(level, width, pass)
        }
        Technique::MicroBatches => measured.least(level),
        _ => None,
    }
}

fn fidelity(level: &Level, choice: &Choice) -> Fidelity {
    if level.states.is_some() || level.weights.is_some() {
        Fidelity::Precision
    } else if choice.accumulation > 1 {
        Fidelity::Rounding
    } else {
        Fidelity::Exact
    }
}

fn name(level: &Level, choice: &Choice) -> String {
    let mut parts = Vec::new();
    if let Some(weights) = level.weights {
        parts.push(format!("weights in bf16 {weights:?}"));
    }
    if let Some(states) = level.states {
        parts.push(format!("states in {states:?}"));
    }
    match level.waits {
        Some(Technique::HostStates) => parts.push("states on the host".to_string()),
        Some(_) => parts.push("updates on the host".to_string()),
        None => {}
    }
    if choice.accumulation > 1 {
        parts.push(format!("{} micro-batches", choice.accumulation));
    }
    let keep = &choice.kept.keep;
    let twice = keep.iter().filter(|keep| !**keep).count();
    if twice > 0 {
        parts.push(format!("{twice} of {} blocks run twice", keep.len()));
    }
    match parts.is_empty() {
        true => "fused".to_string(),
        false => parts.join(", "),
    }
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
            let host = match has_host {
                true => format!("{:.2}", mega(rung.host_bytes)),
                false => String::new(),
            };
            let result = match rung.fidelity {
                Fidelity::Exact => "the same",
                Fidelity::Rounding => "the same but for rounding",
                Fidelity::Precision => "fewer bits",
            };
            let fits = match rung.device_bytes.checked_sub(self.budget) {
                Some(over) if over > 0 => format!("{:.2} MB too many", mega(over)),
                _ => "fits".to_string(),
            };
            writeln!(
                f,
                "{} {:<width$}{:>12.2}{host:>12}{:>10.3}  {result}, {fits}",
                if is_taken { '>' } else { ' ' },
                rung.name,
                mega(rung.device_bytes),
                rung.seconds,
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
