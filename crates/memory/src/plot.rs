//! Plots of timelines: stacked areas by category over time, one below the other, on a common scale, as SVG and PNG.

use std::path::Path;

use epaint_default_fonts::UBUNTU_LIGHT;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

use super::error::MemoryError;
use super::timeline::{Bytes, MemoryTimeline, Phase, Sample};

/// Name, color and bytes of a category.
type Layer = (&'static str, RGBColor, fn(&Bytes) -> usize);

/// From the bottom up.
const LAYERS: [Layer; 5] = [
    ("parameters", RGBColor(49, 99, 149), |it| it.parameters),
    ("optimizer state", RGBColor(109, 168, 191), |it| {
        it.optimizer_state
    }),
    ("gradients", RGBColor(204, 85, 51), |it| it.gradients),
    ("rest (activations)", RGBColor(230, 190, 110), |it| it.rest),
    ("in use", RGBColor(150, 160, 175), |it| it.unassigned),
];

/// Color of the line of the reserved bytes.
const RESERVED: RGBColor = RGBColor(40, 40, 40);

/// Width of a picture in pixels.
const WIDTH: u32 = 1000;
/// Height of one timeline in pixels.
const HEIGHT: u32 = 300;
/// Number of columns of a plot. Each shows its highest sample.
const COLUMNS: usize = 400;
/// Factor that extends the time axis, which leaves room for the legend.
const LEGEND: f64 = 1.2;

/// Draws `timelines`, each with its title, as SVG, one below the other.
///
/// # Errors
///
/// If there is nothing to draw, or the file can't be written.
pub fn save_svg(
    path: impl AsRef<Path>,
    timelines: &[(&str, &MemoryTimeline)],
) -> Result<(), MemoryError> {
    let path = path.as_ref();
    let mut text = String::new();
    check(timelines)?;
    let size = (WIDTH, HEIGHT * timelines.len() as u32);
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(&root, timelines).map_err(|error| MemoryError::unwritable(path, error))?;
    }
    std::fs::write(path, text).map_err(|error| MemoryError::unwritable(path, error))
}

/// Draws `timelines`, each with its title, as PNG.
///
/// # Errors
///
/// If there is nothing to draw, or the file can't be written.
pub fn save_png(
    path: impl AsRef<Path>,
    timelines: &[(&str, &MemoryTimeline)],
) -> Result<(), MemoryError> {
    let path = path.as_ref();
    check(timelines)?;
    let (width, height) = (WIDTH, HEIGHT * timelines.len() as u32);
    let mut pixels = vec![0; 3 * (width * height) as usize];
    {
        let root = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        draw(&root, timelines).map_err(|error| MemoryError::unwritable(path, error))?;
    }
    let mut png = Vec::new();
    PngEncoder::new(&mut png)
        .write_image(&pixels, width, height, ExtendedColorType::Rgb8)
        .map_err(|error| MemoryError::unwritable(path, error))?;
    std::fs::write(path, png).map_err(|error| MemoryError::unwritable(path, error))
}

fn draw<B: DrawingBackend>(
    root: &DrawingArea<B, Shift>,
    timelines: &[(&str, &MemoryTimeline)],
) -> Result<(), String>
where
    B::ErrorType: 'static,
{
    // The crate includes a font, since a machine may have none.
    register_font("sans-serif", FontStyle::Normal, UBUNTU_LIGHT)
        .map_err(|_| "the font can't be used".to_string())?;
    root.fill(&WHITE).map_err(|error| error.to_string())?;

    let highest = timelines.iter().map(|(_, t)| {
        let total = t.peak().bytes.total();
        total.max(t.peak_reserved().unwrap_or_default())
    });
    let longest = timelines.iter().flat_map(|(_, t)| t.samples.last());
    let sheet = Sheet {
        layers: layers(timelines),
        highest: mega(highest.max().unwrap_or_default()),
        longest: longest.map(|sample| sample.seconds).fold(0.0, f64::max),
    };

    let areas = root.split_evenly((timelines.len(), 1));
    for (area, (title, timeline)) in areas.iter().zip(timelines) {
        one(area, title, timeline, &sheet).map_err(|error| error.to_string())?;
    }
    root.present().map_err(|error| error.to_string())
}

/// Common scale of the timelines.
struct Sheet {
    layers: Vec<Layer>,
    /// Highest value in MB.
    highest: f64,
    /// Longest time in seconds.
    longest: f64,
}

fn one<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    timeline: &MemoryTimeline,
    sheet: &Sheet,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>>
where
    B::ErrorType: 'static,
{
    let longest = sheet.longest;
    let top = sheet.highest * 1.12;
    let peak = mega(timeline.peak().bytes.total());
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{title}: peak {peak:.0} MB"), ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..longest * LEGEND, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("seconds")
        .y_desc("MB")
        .label_style(("sans-serif", 13))
        .draw()?;

    // The phases are a strip along the top.
    let ends = timeline.marks.iter().skip(1).map(|mark| mark.seconds);
    let last = timeline
        .samples
        .last()
        .map_or(longest, |sample| sample.seconds);
    let strip = timeline.marks.iter().zip(ends.chain([last]));
    chart.draw_series(strip.filter_map(|(mark, end)| {
        let corners = [(mark.seconds, top * 0.96), (end, top)];
        let color = color(&mark.phase)?;
        Some(Rectangle::new(corners, color.filled()))
    }))?;

    // The upper layers first: each area extends down to zero.
    let columns = columns(timeline, longest);
    for (index, (name, color, _)) in sheet.layers.iter().enumerate().rev() {
        let layers = &sheet.layers[..=index];
        let up_to = |bytes: &Bytes| {
            let layers = layers.iter().map(|(.., of)| of(bytes));
            layers.fold(0, usize::saturating_add)
        };
        let points = columns.iter().map(|s| (s.seconds, mega(up_to(&s.bytes))));
        chart
            .draw_series(AreaSeries::new(points, 0.0, color.filled()))?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled()));
    }
    let reserved = columns
        .iter()
        .filter_map(|s| Some((s.seconds, mega(s.reserved?))));
    if timeline.peak_reserved().is_some() {
        chart
            .draw_series([PathElement::new(reserved.collect::<Vec<_>>(), RESERVED)])?
            .label("reserved")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 12, y)], RESERVED));
    }
    for phase in [
        Phase::Forward,
        Phase::Backward,
        Phase::Update { parameter: None },
    ] {
        let color = color(&phase).unwrap_or(BLACK);
        chart
            .draw_series(std::iter::empty::<Circle<(f64, f64), i32>>())?
            .label(phase.to_string())
            .legend(move |(x, y)| Rectangle::new([(x, y - 2), (x + 12, y + 2)], color.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()
}

/// Returns the highest sample of each column of the plot, and the last one.
fn columns(timeline: &MemoryTimeline, longest: f64) -> Vec<Sample> {
    let column = |s: &Sample| (s.seconds / longest * COLUMNS as f64) as usize;
    let mut columns: Vec<Sample> = Vec::new();
    for sample in timeline.samples.iter().chain(timeline.samples.last()) {
        match columns.last_mut() {
            Some(last) if column(last) == column(sample) => {
                if sample.bytes.total() > last.bytes.total() {
                    *last = *sample;
                }
            }
            _ => columns.push(*sample),
        }
    }
    columns
}

fn mega(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

/// Returns the layers that have bytes in `timelines`.
fn layers(timelines: &[(&str, &MemoryTimeline)]) -> Vec<Layer> {
    let samples = || timelines.iter().flat_map(|(_, t)| &t.samples);
    let is_used = |(.., of): &Layer| samples().any(|sample| of(&sample.bytes) > 0);
    LAYERS.into_iter().filter(is_used).collect()
}

/// Returns the color of a phase; `None` outside of training.
fn color(phase: &Phase) -> Option<RGBColor> {
    match phase {
        Phase::Other => None,
        Phase::Forward => Some(RGBColor(120, 170, 90)),
        Phase::Backward => Some(RGBColor(150, 110, 170)),
        Phase::Update { .. } => Some(RGBColor(60, 60, 60)),
        Phase::Validation => Some(RGBColor(170, 170, 170)),
    }
}

/// Returns an error if there is nothing to draw.
fn check(timelines: &[(&str, &MemoryTimeline)]) -> Result<(), MemoryError> {
    let is_empty = |(_, timeline): &(_, &MemoryTimeline)| timeline.samples.is_empty();
    match timelines.is_empty() || timelines.iter().any(is_empty) {
        true => Err(MemoryError::Empty),
        false => Ok(()),
    }
}
