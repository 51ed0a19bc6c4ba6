use std::path::Path;

use serde::Serialize;

use super::super::error::MemoryError;
use super::super::file;
use super::super::timeline::MemoryTimeline;
use super::check;
use super::palette::{self, RESERVED, Rgb};

/// The page without its timelines.
const TEMPLATE: &str = include_str!("page.html");
/// Stands in the template where they go.
const PLACE: &str = "\"TIMELINES\"";

/// Writes `timelines`, each with its title, as an HTML page that needs no network: the wheel zooms
/// the time around the pointer, with shift the bytes; dragging moves; the pointer shows bytes, phase
/// and parameter.
///
/// # Errors
///
/// If there is nothing to draw, a timeline is damaged, or the file can't be written, which is as it was then.
pub fn save_html(
    path: impl AsRef<Path>,
    timelines: &[(&str, &MemoryTimeline)],
) -> Result<(), MemoryError> {
    check(timelines)?;
    let path = path.as_ref();
    let json = serde_json::to_string(&Page::new(timelines))
        .map_err(|error| MemoryError::unwritable(path, error))?;
    // Inside a script element no text may look like a tag.
    let page = TEMPLATE.replace(PLACE, &json.replace('<', "\\u003c"));
    file::write(path, page.as_bytes())
}

/// What the script of the page reads.
#[derive(Serialize)]
struct Page<'a> {
    layers: Vec<Series>,
    reserved: Series,
    runs: Vec<Run<'a>>,
}

#[derive(Serialize)]
struct Series {
    name: &'static str,
    color: Rgb,
}

#[derive(Serialize)]
struct Run<'a> {
    title: &'a str,
    /// Of each sample.
    seconds: Vec<f64>,
    /// Of each sample, by layer.
    bytes: Vec<Vec<usize>>,
    /// Of each sample, or empty.
    reserved: Vec<usize>,
    /// Of each sample, the index of its phase.
    phase: Vec<usize>,
    phases: Vec<Phase>,
    lost: usize,
}

#[derive(Serialize)]
struct Phase {
    name: String,
    seconds: f64,
    color: Option<Rgb>,
}

impl<'a> Page<'a> {
    fn new(timelines: &[(&'a str, &MemoryTimeline)]) -> Self {
        let layers = palette::layers(timelines);
        let run = |(title, timeline): &(&'a str, &MemoryTimeline)| Run {
            title,
            seconds: timeline.samples.iter().map(|s| s.seconds).collect(),
            bytes: timeline
                .samples
                .iter()
                .map(|s| layers.iter().map(|l| (l.bytes)(&s.bytes)).collect())
                .collect(),
            reserved: timeline.samples.iter().filter_map(|s| s.reserved).collect(),
            phase: timeline.samples.iter().map(|s| s.mark).collect(),
            phases: timeline
                .marks
                .iter()
                .map(|mark| Phase {
                    name: mark.phase.to_string(),
                    seconds: mark.seconds,
                    color: palette::color(&mark.phase),
                })
                .collect(),
            lost: timeline.lost,
        };
        Self {
            runs: timelines.iter().map(run).collect(),
            layers: layers
                .iter()
                .map(|l| Series::from((l.name, l.color)))
                .collect(),
            reserved: RESERVED.into(),
        }
    }
}

impl From<(&'static str, Rgb)> for Series {
    fn from((name, color): (&'static str, Rgb)) -> Self {
        Self { name, color }
    }
}
