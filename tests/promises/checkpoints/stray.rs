//! Other files in the folder remain, and an error names a folder that can't be written to.

use super::*;

fn steps(folder: &Path) -> Vec<u64> {
    Checkpoint::at(folder).steps().unwrap()
}

#[test]
fn foreign_files_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let strays = [
        "thesis.txt",
        "notes/model.bpk",
        "model.bpk",
        "training.json",
        "step-01/model.bpk",
        "step-best/training.json",
        ".step-x.tmp/model.bpk",
        ".step-2.old/model.bpk",
        "step-5",
    ];
    for stray in strays {
        let path = folder.path().join(stray);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, stray).unwrap();
    }
    let checkpoint = Checkpoint::at(folder.path()).keep_last(1);
    for step in 1..5 {
        for _ in 0..2 {
            let progress = Progress::new(step).with_user_data(step as f64 / 3.0);
            checkpoint.save(&after(step), &progress).unwrap();
            assert_is_after(folder.path(), step);
        }
    }
    let left = files(folder.path());
    assert_eq!(left.len(), 6 + strays.len(), "{:?}", left.keys());
    for stray in strays {
        assert_eq!(left[Path::new(stray)], stray.as_bytes());
    }
}

/// Otherwise an earlier step would be loaded.
#[test]
#[cfg(unix)]
fn step_folder_that_cannot_be_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    checkpoint.save(&small(), &Progress::new(1)).unwrap();
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
    };
    link("missing", "step-2");
    assert_eq!(steps(folder.path()), [1]);
    link("step-3", "step-3");
    let refused = checkpoint.steps().unwrap_err();
    assert!(matches!(refused, CheckpointError::Unreadable { .. }));
    assert_says(&refused, "step-3");
}

#[test]
fn keep_last_counts_by_number_and_never_removes_later_steps() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path()).keep_last(2);
    for (step, left) in [
        (9, vec![9]),
        (10, vec![9, 10]),
        (100, vec![10, 100]),
        // A training that was set back to an earlier step.
        (8, vec![8, 10, 100]),
        (11, vec![11, 100]),
        (u64::MAX, vec![100, u64::MAX]),
    ] {
        checkpoint.save(&small(), &Progress::new(step)).unwrap();
        assert_eq!(steps(folder.path()), left);
    }
    let all = Checkpoint::at(folder.path());
    all.save(&small(), &Progress::new(0)).unwrap();
    assert_eq!(steps(folder.path()), [0, 100, u64::MAX]);
}

#[test]
fn invalid_options_are_errors_of_check_and_save() {
    let folder = tempfile::tempdir().unwrap();
    for (checkpoint, words) in [
        (Checkpoint::at(""), "pass a folder"),
        (Checkpoint::at(folder.path()).keep_last(0), "keep 1 or more"),
    ] {
        let progress = Progress::new(1);
        for refused in [checkpoint.check(), checkpoint.save(&small(), &progress)] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, CheckpointError::Invalid { .. }));
            assert_says(&refused, words);
        }
    }
    assert!(Checkpoint::at("").steps().is_err());
    assert!(files(folder.path()).is_empty());
}

#[test]
fn relative_path_is_resolved_once() {
    let here = std::env::current_dir().unwrap();
    assert_eq!(Checkpoint::at("run"), Checkpoint::at(here.join("run")));
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_their_targets_kept() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let [elsewhere, run] = ["elsewhere", "run"].map(|name| folder.path().join(name));
    save(&elsewhere, 4);
    symlink(&elsewhere, &run).unwrap();
    save(&run, 5);
    assert_is_after(&elsewhere, 5);

    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    symlink(elsewhere.join("step-4"), other.join("step-4")).unwrap();
    symlink(elsewhere.join("step-5"), other.join("step-5")).unwrap();
    assert_is_after(&other, 5);
    let before = files(&elsewhere);
    // One is replaced, and one removed.
    let progress = Progress::new(5).with_user_data(0.5);
    let checkpoint = Checkpoint::at(&other).keep_last(1);
    checkpoint.save(&after(2), &progress).unwrap();
    assert_eq!(files(&other).len(), 6);
    assert!(before == files(&elsewhere));
}

#[cfg(target_os = "linux")]
#[test]
fn path_that_is_not_unicode_is_saved_to() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(OsStr::from_bytes(b"run-\xff"));
    save(&path, 4);
    fs::write(path.join(OsStr::from_bytes(b"step-\xff")), b"mine").unwrap();
    save(&path, 5);
    assert_is_after(&path, 5);
}

#[test]
fn check_creates_only_folder() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("of/several/trainings");
    let checkpoint = Checkpoint::at(&deep);
    assert!(steps(&deep).is_empty());
    checkpoint.check().unwrap();
    assert!(steps(&deep).is_empty());
    save(&deep, 3);
    let before = files(&deep);
    checkpoint.check().unwrap();
    assert!(before == files(&deep));
    assert_is_after(&deep, 3);
}

/// A killed check leaves its folder, in this version or an earlier one.
#[test]
fn check_after_killed_check_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 3);
    let checkpoint = Checkpoint::at(folder.path());
    for left in [".writable", &format!(".step-{}.tmp", u64::MAX)] {
        fs::create_dir(folder.path().join(left)).unwrap();
        checkpoint.check().unwrap();
        checkpoint.check().unwrap();
    }
    assert_eq!(steps(folder.path()), [3]);
    assert_is_after(folder.path(), 3);
}

#[track_caller]
fn assert_not_written(folder: &Path, words: &str) {
    let checkpoint = Checkpoint::at(folder);
    let progress = Progress::new(1).with_user_data(0.5);
    let refused = checkpoint.save(&after(1), &progress).unwrap_err();
    let CheckpointError::Write { file, .. } = &refused else {
        panic!("{refused}");
    };
    assert!(file.to_string_lossy().contains(words), "{refused}");
    assert_says(&refused, "are unchanged");
}

#[test]
fn folder_that_is_file_is_named_by_check_and_save() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"years").unwrap();
    for path in [&file, &file.join("within")] {
        assert_matches!(
            Checkpoint::at(path).check(),
            Err(CheckpointError::Write { .. })
        );
        assert_not_written(path, "file");
    }
    assert_eq!(fs::read(&file).unwrap(), b"years");
}

/// This depends on the permissions of the user who runs the tests.
#[cfg(unix)]
#[test]
fn folder_not_writable_is_named_and_keeps_its_checkpoint() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 4);
    let rights = |mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(folder.path(), mode).unwrap();
    };
    rights(0o555);
    let may_all_the_same = fs::write(folder.path().join("try"), b"").is_ok();
    if !may_all_the_same {
        assert_not_written(folder.path(), "");
        assert!(Checkpoint::at(folder.path()).check().is_err());
    }
    assert_is_after(folder.path(), 4);
    rights(0o755);
}

#[test]
fn file_in_place_of_step_folder_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 4);
    fs::write(folder.path().join("step-1"), b"years").unwrap();
    let before = files(folder.path());
    assert_not_written(folder.path(), "step-1");
    assert!(before == files(folder.path()));
    assert_is_after(folder.path(), 4);
}

#[test]
fn keep_last_of_training_set_back_removes_no_later_step() {
    let folder = tempfile::tempdir().unwrap();
    let all = Checkpoint::at(folder.path());
    for step in [10, 20, 30, 40, 50] {
        all.save(&small(), &Progress::new(step)).unwrap();
    }
    all.keep_last(2).save(&small(), &Progress::new(15)).unwrap();
    assert_eq!(steps(folder.path()), [15, 20, 30, 40, 50]);
}
