//! Recordings in files: what is damaged is refused.

use std::path::Path;

use backburn::memory::{MemoryError, MemoryTimeline, plot};
use serde_json::json;

use crate::pictures::stock;

use crate::common::*;

type Save = fn(&MemoryTimeline, &Path) -> Result<(), MemoryError>;

/// All ways to save, with the names of their files.
const SAVES: [(&str, Save); 3] = [
    ("memory.json", |timeline, path| timeline.save_json(path)),
    ("memory.svg", |timeline, path| {
        plot::save_svg(path, &[("stock", timeline)])
    }),
    ("memory.png", |timeline, path| {
        plot::save_png(path, &[("stock", timeline)])
    }),
];

/// A recording of one recomputed block, as it is saved, with `value` at `place`.
fn damaged(place: &str, value: serde_json::Value) -> MemoryTimeline {
    let mut saved = serde_json::to_value(stock()).unwrap();
    saved["blocks"] = json!([
        { "index": 0, "name": "`0`", "forward": 0.1, "backward": 1.5, "activations": 1000 }
    ]);
    *saved.pointer_mut(place).unwrap() = value;
    serde_json::from_value(saved).unwrap()
}

#[test]
fn a_damaged_recording_is_an_error() {
    let lots = 1u64 << 50;
    let damages = [
        damaged("/samples", json!([])),
        damaged("/marks", json!([])),
        damaged("/samples/7/mark", json!(lots)),
        damaged("/blocks/0/index", json!(lots)),
        damaged("/blocks/0/index", json!(1u64 << 33)),
        damaged("/samples/7/seconds", json!(-1.0)),
        damaged("/samples/200/seconds", json!(1e308)),
        damaged("/marks/1/seconds", json!(1e308)),
        damaged("/blocks/0/backward", json!(1e308)),
    ];
    for timeline in damages {
        // Whatever is in it, it can be looked at.
        let peak = *timeline.peak();
        let _ = (timeline.phase(&peak), timeline.to_string());
        let refused = GradientCheckpointingConfig::for_budget(&timeline, usize::MAX);
        let error = refused.unwrap_err();
        let is_that = matches!(error, FusedError::UnusableRecording { .. });
        assert!(is_that, "{error}");

        let folder = tempfile::tempdir().unwrap();
        for (name, save) in &SAVES[1..] {
            let path = folder.path().join(name);
            let error = save(&timeline, &path).unwrap_err();
            let is_that = matches!(error, MemoryError::Empty | MemoryError::Damaged { .. });
            assert!(is_that, "{name}: {error}");
        }
    }
}

#[test]
fn bytes_beyond_all_memory_are_added_up_without_a_panic() {
    for place in ["/samples/7/bytes/rest", "/blocks/0/activations"] {
        let timeline = damaged(place, json!(usize::MAX));
        let _ = timeline.to_string();
        let config = GradientCheckpointingConfig::for_budget(&timeline, usize::MAX - 1);
        match place.contains("blocks") {
            // What it would hold does not fit.
            true => assert!(!config.unwrap().keep_activations.contains(&true)),
            false => assert!(matches!(config, Err(FusedError::Budget { .. }))),
        }
        let folder = tempfile::tempdir().unwrap();
        for (name, save) in SAVES {
            save(&timeline, &folder.path().join(name)).unwrap();
        }
    }
}
