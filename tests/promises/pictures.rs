//! Pictures of timelines show what was recorded. The timelines are made up: a forward and a backward
//! pass of a second each.

use std::path::Path;
use std::process::Command;

use backburn::memory::{Bytes, Mark, MemoryError, MemoryTimeline, Phase, Sample, plot};

fn made_up(backward: Phase, bytes: impl Fn(&Phase) -> (Bytes, Option<usize>)) -> MemoryTimeline {
    let phases = [Phase::Forward, backward];
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

/// With so many bytes of gradients in the second phase.
fn of_process(second: Phase, gradients: usize) -> MemoryTimeline {
    made_up(second, |phase| {
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

pub fn stock() -> MemoryTimeline {
    of_process(Phase::Backward, 100_000_000)
}

fn fused() -> MemoryTimeline {
    of_process(Phase::Backward, 0)
}

fn of_device() -> MemoryTimeline {
    made_up(Phase::Backward, |_| {
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
fn timelines_are_drawn_on_a_common_scale() {
    let (stock, fused) = (stock(), fused());
    let folder = tempfile::tempdir().unwrap();
    let timelines = [("stock", &stock), ("fused", &fused)];

    let svg = folder.path().join("memory.svg");
    plot::save_svg(&svg, &timelines).unwrap();
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("stock: peak 450 MB") && svg.contains("fused: peak 350 MB"));
    for words in [
        "parameters",
        "optimizer state",
        "gradients",
        "rest",
        "backward",
    ] {
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
    // Below there is the one in the legend only.
    assert!(pixels(GRADIENTS, 300..600) < 200);
    assert!(pixels(GRADIENTS, 0..300) > 10_000);
}

#[test]
fn a_device_is_drawn_in_use_and_reserved() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memory.svg");
    plot::save_svg(&file, &[("device", &of_device())]).unwrap();
    let svg = std::fs::read_to_string(file).unwrap();
    assert!(svg.contains("device: peak 300 MB"));
    assert!(svg.contains("in use") && svg.contains("reserved"));
    assert!(!svg.contains("parameters"));
}

#[test]
fn nothing_to_draw_and_nowhere_to_write_are_clear_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nothing");
    let missing = folder.path().join("missing/memory");
    let timeline = stock();
    for save in [plot::save_svg, plot::save_png, plot::save_html] {
        assert!(matches!(save(&file, &[]), Err(MemoryError::Empty)));
        let error = save(&missing, &[("stock", &timeline)]);
        assert!(matches!(error, Err(MemoryError::Unwritable { .. })));
    }
}

/// The page in a real browser: `page.js` does what a user does and notes what the page shows.
#[test]
#[ignore = "needs chromium"]
fn the_page_zooms_and_tells_bytes_phase_and_parameter() {
    let update = Phase::Update {
        parameter: Some("blocks.3.</script>.weight".to_string()),
    };
    let (stock, fused) = (of_process(update, 100_000_000), fused());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    plot::save_html(&file, &[("stock", &stock), ("<b>fused", &fused)]).unwrap();
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(!page.contains("http"), "needs a network");
    let user = include_str!("page.js");
    std::fs::write(&file, format!("{page}<script>{user}</script>")).unwrap();

    let seen = notes(&file);
    let expect = |key: &str, value: &str| {
        assert_eq!(seen[key].as_str(), Some(value), "{key} in {seen:#}");
    };
    expect("errors", "");
    expect(
        "headings",
        "stock: peak 450.0 MB in update of blocks.3.</script>.weight | \
         <b>fused: peak 350.0 MB in forward",
    );
    expect(
        "legend",
        "parameters, optimizer state, gradients, rest (activations), forward, update, backward",
    );
    expect("all", "0.0000 s to 2.0000 s");
    expect(
        "hover",
        "update of blocks.3.</script>.weight, parameters 100.0 MB, optimizer state 200.0 MB, \
         gradients 100.0 MB, rest (activations) 50.0 MB, total 450.0 MB",
    );
    expect("left", "hidden");
    expect("again", "0.0000 s to 2.0000 s");
    // 100 of 450 MB in the areas of half the width.
    let part = seen["gradients"].as_f64().unwrap();
    assert!((part - 0.5 * 100.0 / 450.0).abs() < 0.02, "{part}");
    for change in ["zoomed", "moved", "keyed", "peak"] {
        let lengths = seen[change].as_array().unwrap();
        let [from, to] = [&lengths[0], &lengths[1]].map(|n| n.as_f64().unwrap());
        match change {
            // Around the middle, by the same part on both sides.
            "zoomed" => assert!(from > 0.05 && (from - (2.0 - to)).abs() < 0.02),
            "moved" => assert!(to < 1.9 && from < 0.05),
            "keyed" => assert!(to - from < 1.6),
            _ => assert!(from < 1.01 && 1.01 < to && to - from < 0.5),
        }
    }
}

/// The text that the script wrote into the page.
fn notes(page: &Path) -> serde_json::Value {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
        ])
        .args(["--disable-sync", "--window-size=1200,900", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(page)
        .output()
        .expect("chromium runs");
    let page = String::from_utf8(output.stdout).unwrap();
    let notes = page.split("<pre id=\"notes\">").nth(1);
    let notes = notes.and_then(|rest| rest.split("</pre>").next());
    let notes = notes.unwrap_or_else(|| panic!("no notes in {page}"));
    let notes = notes
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&notes).unwrap()
}
