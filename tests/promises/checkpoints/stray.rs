//! What else is in the folder stays there, and a folder that can't be written to is named.

use super::*;

#[test]
fn a_stray_file_is_left_alone_and_no_hindrance() {
    let folder = tempfile::tempdir().unwrap();
    let strays = [
        "thesis.txt",
        "notes/model.bpk",
        "model.bpk",
        "checkpoint.json~",
        "checkpoint.json.bak",
        "parts-c/model.bpk",
        "parts-a/loss.csv",
        "parts-b/model.bpk.old",
        "parts-b/deeper/optimizer.bpk",
    ];
    for stray in strays {
        let path = folder.path().join(stray);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, stray).unwrap();
    }
    for steps in 1..5 {
        save(folder.path(), steps);
        assert_is_after(folder.path(), steps);
    }
    let left = files(folder.path());
    assert_eq!(left.len(), 6 + strays.len(), "{:?}", left.keys());
    for stray in strays {
        assert_eq!(left[Path::new(stray)], stray.as_bytes());
    }
}

#[test]
fn a_folder_is_made_with_those_that_it_is_in() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("of/several/trainings");
    let checkpoint = Checkpoint::at(&deep);
    assert!(!checkpoint.exists());
    checkpoint.check().unwrap();
    assert!(!checkpoint.exists());
    save(&deep, 3);
    assert!(checkpoint.exists());
    let before = files(&deep);
    checkpoint.check().unwrap();
    assert!(before == files(&deep));
    assert_is_after(&deep, 3);
}

#[track_caller]
fn assert_not_written(folder: &Path, words: &str) {
    let checkpoint = Checkpoint::at(folder);
    let progress = Progress::new(1).with_plan(0.5);
    let refused = checkpoint.save(&after(1), &progress).unwrap_err();
    let CheckpointError::Write { file, .. } = &refused else {
        panic!("{refused}");
    };
    assert!(file.to_string_lossy().contains(words), "{refused}");
    assert!(refused.to_string().contains("is still there"), "{refused}");
}

#[test]
fn a_folder_that_is_none_is_named_before_training_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"years").unwrap();
    for path in [&file, &file.join("within")] {
        assert!(matches!(
            Checkpoint::at(path).check(),
            Err(CheckpointError::Write { .. })
        ));
        assert_not_written(path, "file");
    }
    assert_eq!(fs::read(&file).unwrap(), b"years");
}

/// As far as the rights of the user who runs the tests go.
#[cfg(unix)]
#[test]
fn a_folder_that_is_not_writable_is_named_and_keeps_its_checkpoint() {
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

/// Where a part should be there is a folder, so the save fails in the middle.
#[test]
fn a_save_that_fails_in_the_middle_leaves_the_checkpoint_and_no_parts() {
    for part in [
        "model.bpk",
        "optimizer.bpk",
        "scheduler.bpk",
        "progress.cbor",
    ] {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), 4);
        let before = files(folder.path());
        let hindrance = folder.path().join("parts-b").join(part).join("in the way");
        fs::create_dir_all(&hindrance).unwrap();
        assert_not_written(folder.path(), part);
        assert_is_after(folder.path(), 4);
        assert!(before == files(folder.path()), "{part}");
        fs::remove_dir_all(folder.path().join("parts-b")).unwrap();
        save(folder.path(), 5);
        assert_is_after(folder.path(), 5);
    }
}
