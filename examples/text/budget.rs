//! The largest batch that fits a number of bytes, by technique.

use backburn::GradientCheckpointingConfig;
use clap::ValueEnum;
use peak_alloc::PeakAlloc;

use crate::formats::Formats;
use crate::model::LanguageModelConfig;
use crate::technique::{Place, Technique};
use crate::text::Text;

/// Prints a table: for each technique the largest batch with which two steps take no more than
/// `budget` bytes, model and optimizer included.
pub fn print(
    config: &LanguageModelConfig,
    text: &mut Text,
    budget: usize,
    formats: Formats,
    bytes: &PeakAlloc,
) {
    let place = Place {
        formats,
        ..Place::default()
    };
    println!("{:<12}{:>10}{:>14}", "", "batch", "peak (MB)");
    for technique in Technique::value_variants() {
        let mut peak = |batch: usize| {
            let before = bytes.current_usage();
            bytes.reset_peak_usage();
            let mut trainer = technique.start(config, GradientCheckpointingConfig::new(), place);
            for _ in 0..2 {
                let batch = text.batch(batch, &technique.device(place));
                trainer.step(batch, 0.0);
            }
            bytes.peak_usage() - before
        };
        let name = technique.to_possible_value().expect("none is skipped");
        let (batch, peak) = largest(budget, &mut peak);
        println!(
            "{:<12}{batch:>10}{:>14.1}",
            name.get_name(),
            peak as f64 / 1e6
        );
    }
}

/// The largest batch whose peak is within `budget`, with its peak; 0 if there is none.
fn largest(budget: usize, peak: &mut dyn FnMut(usize) -> usize) -> (usize, usize) {
    let (mut fits, mut found) = (0, 0);
    let mut too_large = 1;
    loop {
        let needed = peak(too_large);
        if needed > budget {
            break;
        }
        (fits, found) = (too_large, needed);
        too_large *= 2;
    }
    while too_large - fits > 1 {
        let middle = fits.midpoint(too_large);
        match peak(middle) {
            needed if needed <= budget => (fits, found) = (middle, needed),
            _ => too_large = middle,
        }
    }
    (fits, found)
}
