//! Pictures of timelines: stacked areas by category over time, one below the other, on a common
//! scale. As SVG and PNG for documents, as an HTML page to zoom and hover.

mod page;
mod palette;
mod picture;

pub use page::save_html;
pub use picture::{save_png, save_svg};

use super::error::MemoryError;
use super::timeline::MemoryTimeline;

/// Something to draw: at least one timeline, none of them empty.
fn check(timelines: &[(&str, &MemoryTimeline)]) -> Result<(), MemoryError> {
    let empty = |(_, timeline): &(&str, &MemoryTimeline)| timeline.samples.is_empty();
    match timelines.is_empty() || timelines.iter().any(empty) {
        true => Err(MemoryError::Empty),
        false => Ok(()),
    }
}
