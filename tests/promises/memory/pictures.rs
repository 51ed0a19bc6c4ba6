//! Pictures of timelines show the recorded data. The timelines are artificial: a forward and a backward pass of one
//! second each.

use backburn::memory::{Bytes, Mark, MemoryError, MemoryTimeline, Phase, Sample, plot};

fn made_up(bytes: impl Fn(&Phase) -> (Bytes, Option<usize>)) -> MemoryTimeline {
    let phases = [Phase::Forward, Phase::Backward];
    let samples = (0..=200).map(|index| {
        let (bytes, reserved) = bytes(&phases[index / 101]);
        Sample {
            seconds: index as f64 / 100.0,
            mark: index / 101,
            bytes,
            reserved,
        }
    });
    let samples = samples.collect();
    let marks = phases.into_iter().enumerate().map(|(index, phase)| Mark {
        seconds: index as f64,
        phase,
    });
    MemoryTimeline {
        samples,
        marks: marks.collect(),
        ..MemoryTimeline::default()
    }
}

/// A timeline with these bytes of gradients in the backward pass.
fn of_process(gradients: usize) -> MemoryTimeline {
    made_up(|phase| {
        let bytes = Bytes {
            parameters: 100_000_000,
            gradients: if *phase == Phase::Forward {
                0
            } else {
                gradients
            },
            optimizer_state: 200_000_000,
            rest: 50_000_000,
            unassigned: 0,
        };
        (bytes, None)
    })
}

fn stock() -> MemoryTimeline {
    of_process(100_000_000)
}

fn fused() -> MemoryTimeline {
    of_process(0)
}

fn of_device() -> MemoryTimeline {
    made_up(|_| {
        let bytes = Bytes {
            unassigned: 300_000_000,
            ..Bytes::default()
        };
        (bytes, Some(400_000_000))
    })
}

const PARAMETERS: [u8; 3] = [49, 99, 149];
const GRADIENTS: [u8; 3] = [204, 85, 51];

#[test]
fn timelines_are_drawn_on_common_scale() {
    let (stock, fused) = (stock(), fused());
    let folder = tempfile::tempdir().unwrap();
    let timelines = [("stock", &stock), ("fused", &fused)];

    let svg = folder.path().join("memory.svg");
    plot::save_svg(&svg, &timelines).unwrap();
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("stock: peak 450 MB") && svg.contains("fused: peak 350 MB"));
    for words in "parameters|optimizer state|gradients|rest|backward".split('|') {
        assert_eq!(svg.matches(words).count(), 2, "`{words}`");
    }
    assert!(!svg.contains("reserved"));

    let png = folder.path().join("memory.png");
    plot::save_png(&png, &timelines).unwrap();
    let png = image::open(png).unwrap().into_rgb8();
    assert_eq!(png.dimensions(), (1000, 600));
    let pixels = |color: [u8; 3], rows: std::ops::Range<usize>| {
        let rows = png.rows().skip(rows.start).take(rows.len());
        rows.flatten().filter(|pixel| pixel.0 == color).count()
    };
    assert_eq!(pixels(PARAMETERS, 0..300), pixels(PARAMETERS, 300..600));
    // Below this line only the legend has this color.
    assert!(pixels(GRADIENTS, 300..600) < 200);
    assert!(pixels(GRADIENTS, 0..300) > 10_000);
}

#[test]
fn device_plot_shows_bytes_in_use_and_reserved() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memory.svg");
    plot::save_svg(&file, &[("device", &of_device())]).unwrap();
    let svg = std::fs::read_to_string(file).unwrap();
    assert!(svg.contains("device: peak 300 MB"));
    assert!(svg.contains("in use") && svg.contains("reserved"));
    assert!(!svg.contains("parameters"));
}

#[test]
fn plot_without_data_or_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nothing");
    let missing = folder.path().join("missing/memory");
    let timeline = stock();
    for save in [plot::save_svg, plot::save_png] {
        assert!(matches!(save(&file, &[]), Err(MemoryError::Empty)));
        let error = save(&missing, &[("stock", &timeline)]);
        assert!(matches!(error, Err(MemoryError::Unwritable { .. })));
    }
}
