//! Recordings in files: a save that fails costs nothing that was there, and what is damaged is refused.

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

#[cfg(unix)]
mod in_files {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    use std::process::{Command, Stdio};

    use super::*;

    const FOLDER: &str = "BACKBURN_TEST_SAVES_IN";

    /// Not a test: the process of the next one, in which no file may grow beyond two KB or so.
    #[test]
    fn save_what_does_not_fit() {
        let Some(folder) = std::env::var_os(FOLDER) else {
            return;
        };
        for (name, save) in SAVES {
            let path = Path::new(&folder).join(name);
            let error = save(&stock(), &path).unwrap_err();
            let MemoryError::Unwritable { path: named, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!(*named, path);
        }
    }

    #[test]
    fn a_save_that_fails_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        for (name, _) in SAVES {
            fs::write(folder.path().join(name), "of the last training").unwrap();
        }
        let saved = Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args(["recordings::in_files::save_what_does_not_fit", "--exact"])
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        assert!(saved.status.success(), "{saved:?}");
        for (name, _) in SAVES {
            let left = fs::read_to_string(folder.path().join(name)).unwrap();
            assert_eq!(left, "of the last training", "{name}");
        }
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, SAVES.len(), "something was left behind");
    }

    #[test]
    fn a_save_replaces_what_the_file_holds_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        for (name, save) in SAVES {
            let (file, link) = (folder.path().join(name), folder.path().join("link"));
            fs::write(&file, "of the last training").unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
            symlink(&file, &link).unwrap();
            save(&stock(), &link).unwrap();
            assert!(link.is_symlink(), "{name}");
            fs::remove_file(link).unwrap();
            let mode = fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o640, "{name}");
            assert_ne!(fs::read(&file).unwrap(), b"of the last training", "{name}");
        }
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, SAVES.len(), "something was left behind");
    }

    #[test]
    fn a_pipe_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let reader = Command::new("cat")
            .arg(&pipe)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        stock().save_json(&pipe).unwrap();
        let read = reader.wait_with_output().unwrap().stdout;
        assert!(read.starts_with(b"{\"samples\":"));
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    }
}

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
            std::fs::write(&path, "of the last training").unwrap();
            let error = save(&timeline, &path).unwrap_err();
            let is_that = matches!(error, MemoryError::Empty | MemoryError::Damaged { .. });
            assert!(is_that, "{name}: {error}");
            let left = std::fs::read_to_string(&path).unwrap();
            assert_eq!(left, "of the last training", "{name}");
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
