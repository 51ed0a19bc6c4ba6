//! Plots of timelines: stacked areas by category over time, one below the other, on a common scale. They are SVG and PNG for
//! documents, and an HTML page with zoom.

mod page;
mod palette;
mod picture;

pub use page::save_html;
pub use picture::{save_png, save_svg};

use super::error::MemoryError;
use super::timeline::MemoryTimeline;

/// Checks the input: at least one timeline, none of them empty or damaged.
fn check(timelines: &[(&str, &MemoryTimeline)]) -> Result<(), MemoryError> {
    if timelines.is_empty() {
        return Err(MemoryError::Empty);
    }
    let mut timelines = timelines.iter();
    timelines.try_for_each(|(_, timeline)| timeline.check())
}
