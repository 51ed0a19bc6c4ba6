use std::path::Path;

use serde_json::{Value, json};

use super::super::error::MemoryError;
use super::super::file;
use super::super::timeline::{Mark, MemoryTimeline};
use super::check;
use super::palette::{self, RESERVED};

/// The page without its timelines.
const TEMPLATE: &str = include_str!("page.html");
/// Placeholder in the template.
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
    let json = contents(timelines).to_string();
    // Inside a script element no text may look like a tag.
    let page = TEMPLATE.replace(PLACE, &json.replace('<', "\\u003c"));
    file::write(path, page.as_bytes())
}

/// Returns the data for the page's script. Seconds, bytes by layer and phases are those of each sample.
fn contents(timelines: &[(&str, &MemoryTimeline)]) -> Value {
    let layers = palette::layers(timelines);
    let run = |(title, timeline): &(&str, &MemoryTimeline)| {
        let samples = || timeline.samples.iter();
        let bytes = |bytes| layers.iter().map(|layer| (layer.bytes)(bytes)).collect();
        let phase = |mark: &Mark| {
            let Mark { seconds, phase } = mark;
            let (name, color) = (phase.to_string(), palette::color(phase));
            json!({ "name": name, "seconds": seconds, "color": color })
        };
        json!({
            "title": title,
            "seconds": samples().map(|it| it.seconds).collect::<Vec<_>>(),
            "bytes": samples().map(|it| bytes(&it.bytes)).collect::<Vec<Vec<usize>>>(),
            "reserved": samples().filter_map(|it| it.reserved).collect::<Vec<_>>(),
            "phase": samples().map(|it| it.mark).collect::<Vec<_>>(),
            "phases": timeline.marks.iter().map(phase).collect::<Vec<_>>(),
            "lost": timeline.lost,
        })
    };
    let series = |(name, color)| json!({ "name": name, "color": color });
    let of_layers = layers.iter().map(|layer| series((layer.name, layer.color)));
    json!({
        "layers": of_layers.collect::<Vec<_>>(),
        "reserved": series(RESERVED),
        "runs": timelines.iter().map(run).collect::<Vec<_>>(),
    })
}
