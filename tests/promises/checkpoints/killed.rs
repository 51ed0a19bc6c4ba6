//! A killed save leaves the last complete checkpoint. The next save removes its remains.

use std::process::{Command, Stdio};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

enum Act {
    Write(PathBuf, Vec<u8>),
    Move(&'static str, &'static str),
    Remove(PathBuf),
}

/// The acts of a save of step 5 that writes `new` and removes the older step in the folder `older`.
fn acts(new: &BTreeMap<PathBuf, Vec<u8>>, older: &'static str) -> Vec<Act> {
    const TEMPORARY: &str = ".step-5.tmp";
    const TRAINING: &str = ".step-5.tmp/training.tmp";
    let mut acts = Vec::new();
    for file in FILES {
        let bytes = &new[&Path::new("step-5").join(file)];
        let path = match file {
            "training.json" => PathBuf::from(TRAINING),
            file => Path::new(TEMPORARY).join(file),
        };
        for length in [0, bytes.len() / 2, bytes.len()] {
            acts.push(Act::Write(path.clone(), bytes[..length].to_vec()));
        }
    }
    acts.push(Act::Move(TRAINING, ".step-5.tmp/training.json"));
    let removed = |folder| {
        let files = FILES.iter().rev();
        files.map(move |file| Act::Remove(Path::new(folder).join(file)))
    };
    if older == "step-5" {
        acts.extend(removed(older));
        acts.push(Act::Move(TEMPORARY, "step-5"));
    } else {
        acts.push(Act::Move(TEMPORARY, "step-5"));
        acts.push(Act::Move(older, ".step-4.tmp"));
        acts.extend(removed(".step-4.tmp"));
    }
    acts
}

fn rename(files: &mut BTreeMap<PathBuf, Vec<u8>>, from: &str, to: &str) {
    *files = std::mem::take(files)
        .into_iter()
        .map(|(path, bytes)| match path.strip_prefix(from) {
            Ok(rest) if rest == Path::new("") => (to.into(), bytes),
            Ok(rest) => (Path::new(to).join(rest), bytes),
            Err(_) => (path, bytes),
        })
        .collect();
}

#[test]
fn save_killed_at_any_point_leaves_checkpoint() {
    for older in ["step-4", "step-5"] {
        let step = if older == "step-4" { 4 } else { 5 };
        let folder = tempfile::tempdir().unwrap();
        save_as(folder.path(), step, 1);
        let mut now = files(folder.path());
        let checkpoint = Checkpoint::at(folder.path()).keep_last(1);
        let progress = Progress::new(5).with_user_data(2.0 / 3.0);
        checkpoint.save(&after(2), &progress).unwrap();
        let new = files(folder.path());
        let (mut step, mut steps) = (step, 1);
        for act in acts(&new, older) {
            match act {
                Act::Write(path, bytes) => drop(now.insert(path, bytes)),
                Act::Move(from, to) => {
                    rename(&mut now, from, to);
                    // A temporary folder is complete with its last file.
                    if to == "step-5" || to.ends_with("json") && older == "step-4" {
                        (step, steps) = (5, 2);
                    }
                }
                Act::Remove(path) => {
                    now.remove(&path).unwrap();
                    if path == Path::new("step-5/training.json") {
                        // The new one is complete in its temporary folder.
                        steps = 2;
                    }
                }
            }
            let killed = folder_of(&now);
            assert_loads(&Checkpoint::at(killed.path()), step, steps);
            save(killed.path(), 9);
            assert_is_after(killed.path(), 9);
            // The remains of the killed save are removed, and the last checkpoint remains.
            assert_loads(&Checkpoint::at(killed.path()).at_step(step), step, steps);
            let folders = fs::read_dir(killed.path()).unwrap();
            for entry in folders {
                let name = entry.unwrap().file_name().into_string().unwrap();
                assert!(
                    name.starts_with("step-") || name == "checkpoint.lock",
                    "{name}"
                );
            }
        }
        assert!(now == new);
    }
}

#[test]
fn first_save_killed_leaves_none_and_can_be_repeated() {
    let mut whole = saved(4);
    rename(&mut whole, "step-4", ".step-4.tmp");
    rename(
        &mut whole,
        ".step-4.tmp/training.json",
        ".step-4.tmp/training.tmp",
    );
    let mut now = BTreeMap::new();
    for (name, bytes) in &whole {
        now.insert(name.clone(), bytes[..bytes.len() / 2].to_vec());
        let killed = folder_of(&now);
        let refused = assert_refused(killed.path());
        assert!(matches!(refused, CheckpointError::NotFound { .. }));
        save(killed.path(), 9);
        assert_is_after(killed.path(), 9);
        assert_eq!(files(killed.path()).len(), 6);
        now.insert(name.clone(), bytes.clone());
    }
}

const FOLDER: &str = "BACKBURN_CHECKPOINT_OF_A_CHILD";

fn large() -> Training {
    FusedOptimizer::new(Small::of([300, 300]), sgd()).unwrap()
}

/// Not a test by itself: a process that saves until it is killed.
#[test]
fn child_saves_repeatedly() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let checkpoint = Checkpoint::at(PathBuf::from(folder)).keep_last(1);
    let mut training = large();
    let mut done = 0;
    if !checkpoint.steps().unwrap().is_empty() {
        let progress: Progress<u64> = checkpoint.load(&mut training).unwrap();
        done = progress.step;
    }
    // Long enough to be killed, but not endless.
    for step in done..done + 20_000 {
        self::step(&mut training);
        let progress = Progress::new(step + 1).with_user_data((step + 1) * 3);
        checkpoint.save(&training, &progress).unwrap();
    }
}

#[test]
fn process_killed_repeatedly_loses_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path()).keep_last(1);
    let mut random = StdRng::seed_from_u64(7);
    let (mut through, mut before) = (large(), 0);
    for _ in 0..12 {
        let name = "checkpoints::killed::child_saves_repeatedly";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // It has saved at least once.
        let steps = || checkpoint.steps().unwrap();
        let at_first = steps();
        while steps() == at_first {
            assert!(child.try_wait().unwrap().is_none(), "the child has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.random_range(0..20_000)));
        child.kill().unwrap();
        child.wait().unwrap();

        let mut resumed = large();
        let progress: Progress<u64> = checkpoint.load(&mut resumed).unwrap();
        assert!(progress.step > before);
        assert_eq!(progress.user_data, progress.step * 3);
        (before..progress.step).for_each(|_| step(&mut through));
        assert!(contents(&through) == contents(&resumed));
        before = progress.step;
    }
    checkpoint
        .save(&through, &Progress::new(before + 1))
        .unwrap();
    assert_eq!(files(folder.path()).len(), 6);
}

#[test]
fn load_during_save_gets_complete_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 1);
    std::thread::scope(|scope| {
        // Always the same step, so each save replaces the checkpoint that is read.
        scope.spawn(|| (2..40).for_each(|steps| save_as(folder.path(), 1, steps % 7)));
        for _ in 0..40 {
            let mut training = small();
            let checkpoint = Checkpoint::at(folder.path());
            let progress: Progress<f64> = checkpoint.load(&mut training).unwrap();
            let steps = (progress.user_data * 3.0).round() as u64;
            assert!(contents(&training) == contents(&after(steps)));
        }
    });
}

const LIMITED: &str = "BACKBURN_CHECKPOINT_OF_A_LIMITED_CHILD";

/// Not a test by itself: a process that may not write large files.
#[test]
fn child_fails_to_save() {
    let Some(folder) = std::env::var_os(LIMITED) else {
        return;
    };
    let checkpoint = Checkpoint::at(PathBuf::from(folder)).keep_last(1);
    let refused = checkpoint.save(&large(), &Progress::new(2)).unwrap_err();
    assert_matches!(refused, CheckpointError::Write { file, .. } if file.ends_with("model.bpk"));
}

/// A write fails in the middle of a file, which simulates a full disk.
#[cfg(unix)]
#[test]
fn save_failing_in_file_leaves_only_old_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 1);
    let before = files(folder.path());
    let name = "checkpoints::killed::child_fails_to_save";
    let limit = "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", limit])
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact"])
        .env(LIMITED, folder.path())
        .output()
        .unwrap();
    assert_has_passed(&output);
    assert!(before == files(folder.path()));
    assert_is_after(folder.path(), 1);
}
