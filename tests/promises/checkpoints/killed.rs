//! A save that is killed leaves the last complete checkpoint, and what is left of it goes with the next.

use std::process::{Command, Stdio};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// What a save does to the folder, one after the other.
enum Act {
    Write(PathBuf, Vec<u8>),
    Move(PathBuf, PathBuf),
    Remove(PathBuf),
}

/// All that the save does which makes `new` of `old`.
fn acts(old: &BTreeMap<PathBuf, Vec<u8>>, new: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<Act> {
    let mut acts = Vec::new();
    let manifest = PathBuf::from("checkpoint.json");
    let parts = [
        "model.bpk",
        "optimizer.bpk",
        "scheduler.bpk",
        "progress.cbor",
    ];
    let part = |files: &BTreeMap<PathBuf, Vec<u8>>, name: &str| {
        let mut names = files.keys();
        names.find(|path| path.ends_with(name)).unwrap().clone()
    };
    let written = parts.map(|name| part(new, name));
    for path in written.iter().chain([&manifest]) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let unfinished = path.with_file_name(format!("{name}.4711-0.tmp"));
        let bytes = &new[path];
        for length in [0, bytes.len() / 2, bytes.len()] {
            acts.push(Act::Write(unfinished.clone(), bytes[..length].to_vec()));
        }
        acts.push(Act::Move(unfinished, path.clone()));
    }
    let before = parts.map(|name| part(old, name));
    acts.extend(before.map(Act::Remove));
    acts
}

#[test]
fn a_save_that_is_killed_at_any_point_leaves_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 4);
    let first = files(folder.path());
    save(folder.path(), 5);
    let second = files(folder.path());
    save(folder.path(), 6);
    let third = files(folder.path());
    for (old, new, steps) in [(&first, &second, 4), (&second, &third, 5)] {
        let mut now = old.clone();
        let mut steps = steps;
        for act in acts(old, new) {
            match act {
                Act::Write(path, bytes) => drop(now.insert(path, bytes)),
                Act::Move(from, to) => {
                    let bytes = now.remove(&from).unwrap();
                    if to.ends_with("checkpoint.json") {
                        steps += 1;
                    }
                    now.insert(to, bytes);
                }
                Act::Remove(path) => drop(now.remove(&path).unwrap()),
            }
            let killed = folder_of(&now);
            assert_is_after(killed.path(), steps);
            save(killed.path(), 9);
            assert_is_after(killed.path(), 9);
            // The manifest, the lock, and four parts.
            let left = files(killed.path());
            assert_eq!(left.len(), 6, "{:?}", left.keys());
        }
        // That is what a save has done.
        assert!(now == *new);
    }
}

/// The first save of all.
#[test]
fn a_first_save_that_is_killed_leaves_none_and_is_no_hindrance() {
    let whole = saved(4, false);
    let mut now = BTreeMap::new();
    for (name, bytes) in whole.iter().filter(|(name, _)| is_part(name)) {
        now.insert(name.clone(), bytes[..bytes.len() / 2].to_vec());
        let killed = folder_of(&now);
        let refused = assert_refused(killed.path());
        assert!(matches!(refused, CheckpointError::NotThere { .. }));
        save(killed.path(), 9);
        assert_is_after(killed.path(), 9);
        now.insert(name.clone(), bytes.clone());
    }
}

const FOLDER: &str = "BACKBURN_CHECKPOINT_OF_A_CHILD";

fn large() -> Training {
    FusedOptimizer::new(Small::of([300, 300]), sgd())
}

/// Not a test by itself: a process that saves until it is killed.
#[test]
fn a_child_that_saves_on_and_on() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let checkpoint = Checkpoint::at(PathBuf::from(folder));
    let mut training = large();
    let mut done = 0;
    if checkpoint.exists() {
        let progress: Progress<u64> = checkpoint.load(&mut training).unwrap();
        done = progress.step;
    }
    // Long enough to be killed, and not for ever if nobody does.
    for step in done..done + 20_000 {
        self::step(&mut training);
        let progress = Progress::new(step + 1).with_plan((step + 1) * 3);
        checkpoint.save(&training, &progress).unwrap();
    }
}

#[test]
fn a_process_that_is_killed_again_and_again_loses_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let mut random = StdRng::seed_from_u64(7);
    let (mut through, mut before) = (large(), 0);
    for _ in 0..12 {
        let name = "checkpoints::killed::a_child_that_saves_on_and_on";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // It has saved at least once.
        let manifest = || fs::read(folder.path().join("checkpoint.json")).ok();
        let at_first = manifest();
        while manifest() == at_first {
            assert!(child.try_wait().unwrap().is_none(), "the child has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.random_range(0..20_000)));
        child.kill().unwrap();
        child.wait().unwrap();

        let mut resumed = large();
        let progress: Progress<u64> = checkpoint.load(&mut resumed).unwrap();
        assert!(progress.step > before);
        assert_eq!(progress.plan, progress.step * 3);
        (before..progress.step).for_each(|_| step(&mut through));
        assert!(contents(&through) == contents(&resumed));
        before = progress.step;
    }
    checkpoint.save(&through, &Progress::new(1)).unwrap();
    assert_eq!(files(folder.path()).len(), 6);
}

#[test]
fn who_loads_while_another_saves_gets_a_whole_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| (2..40).for_each(|steps| save(folder.path(), steps % 7)));
        for _ in 0..40 {
            let mut training = small();
            let checkpoint = Checkpoint::at(folder.path());
            let progress: Progress<f64> = checkpoint.load(&mut training).unwrap();
            assert!(contents(&training) == contents(&after(progress.step)));
        }
    });
}
