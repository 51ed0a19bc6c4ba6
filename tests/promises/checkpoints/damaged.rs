//! Damaged files, and files that were not saved together, are refused.

use proptest::prelude::*;

use super::*;

#[test]
fn files_of_two_checkpoints_are_refused_by_name() {
    let [one, other] = [4, 5].map(|steps| {
        let folder = tempfile::tempdir().unwrap();
        save_as(folder.path(), 4, steps);
        files(folder.path())
    });
    for file in FILES {
        let path = Path::new("step-4").join(file);
        for (whole, strange) in [(&one, &other), (&other, &one)] {
            let mut mixed = whole.clone();
            mixed.insert(path.clone(), strange[&path].clone());
            // Two trainings without a scheduler have the same record of it.
            if mixed == *whole {
                assert_eq!(file, "scheduler.bpk");
                continue;
            }
            let refused = assert_refused(folder_of(&mixed).path());
            let CheckpointError::Unreadable { file: named, .. } = &refused else {
                panic!("{refused}");
            };
            assert!(
                file == "training.json" || named.ends_with(file),
                "{refused}"
            );
        }
    }
}

#[test]
fn file_missing_or_truncated_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    // In numerical order, not in the order of texts.
    for steps in [9, 10] {
        save(folder.path(), steps);
    }
    let whole = files(folder.path());
    for file in FILES {
        let path = Path::new("step-10").join(file);
        let length = whole[&path].len();
        for length in [None, Some(0), Some(1), Some(length / 2), Some(length - 1)] {
            let mut damaged = whole.clone();
            match length {
                Some(length) => damaged.get_mut(&path).unwrap().truncate(length),
                None => drop(damaged.remove(&path)),
            }
            let damaged = folder_of(&damaged);
            if file == "training.json" && length.is_none() {
                // Not complete, so it is skipped.
                assert_is_after(damaged.path(), 9);
                continue;
            }
            let refused = assert_refused(damaged.path());
            let CheckpointError::Unreadable { file: named, .. } = &refused else {
                panic!("{refused}");
            };
            assert!(named.ends_with(&path), "{refused}");
            let message = refused.to_string();
            let reason = match length {
                None => "it is missing".into(),
                Some(length) if file != "training.json" => format!("it has {length} bytes"),
                Some(_) => String::new(),
            };
            assert!(message.contains(&reason), "{message}");
            let older = Checkpoint::at(damaged.path()).at_step(9);
            assert_loads(&older, 9, 9);
        }
    }
}

#[test]
fn incomplete_newest_step_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 4);
    save(folder.path(), 5);
    fs::remove_file(folder.path().join("step-5/training.json")).unwrap();
    assert_is_after(folder.path(), 4);
    assert_eq!(Checkpoint::at(folder.path()).steps().unwrap(), [4]);
    // It can be saved again.
    save(folder.path(), 5);
    assert_is_after(folder.path(), 5);
    assert_eq!(files(folder.path()).len(), 11);
}

#[test]
fn absent_step_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    (1..=7).for_each(|steps| save(folder.path(), steps));
    let checkpoint = Checkpoint::at(folder.path());
    let refused = checkpoint.at_step(30).model().unwrap_err();
    assert_says(&refused, "of step 30 in");
    assert_loads(&checkpoint.at_step(3), 3, 3);
    assert_eq!(checkpoint.at_step(2).progress::<f64>().unwrap().step, 2);
}

#[test]
fn folder_without_checkpoint_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let nowhere = empty.path().join("nowhere");
    let mut without = saved(4);
    without.remove(Path::new("step-4/training.json"));
    let without = folder_of(&without);
    for folder in [empty.path(), &nowhere, without.path()] {
        let refused = assert_refused(folder);
        assert_eq!(
            refused,
            CheckpointError::NotFound {
                folder: folder.to_path_buf(),
                step: None,
            }
        );
        let checkpoint = Checkpoint::at(folder);
        assert!(checkpoint.steps().unwrap().is_empty());
        assert!(checkpoint.model().is_err());
        assert!(checkpoint.at_step(4).progress::<f64>().is_err());
    }
}

#[test]
fn step_folder_renamed_or_of_later_version_is_refused() {
    let mut renamed = saved(4);
    for file in FILES {
        let [from, to] = ["step-4", "step-6"].map(|folder| Path::new(folder).join(file));
        let bytes = renamed.remove(&from).unwrap();
        renamed.insert(to, bytes);
    }
    let mut later = saved(4);
    let training = later.get_mut(Path::new("step-4/training.json")).unwrap();
    *training = br#"{"format": 2, "volumes": []}"#.to_vec();
    for (files, words) in [(renamed, "it belongs to step 4"), (later, "format 2")] {
        let folder = folder_of(&files);
        assert_says(&assert_refused(folder.path()), words);
        // The training in memory is unchanged.
        save(folder.path(), 7);
        assert_is_after(folder.path(), 7);
    }
}

#[test]
fn user_data_of_another_type_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 4);
    let mut training = after(2);
    let before = contents(&training);
    let refused = Checkpoint::at(folder.path()).load::<String>(&mut training);
    assert!(contents(&training) == before);
    let refused = refused.unwrap_err();
    assert_matches!(refused, CheckpointError::UserData { done: "read", .. });
    assert_says(&refused, "String");
    assert_says(&refused, "Load the type that was saved");
    assert_is_after(folder.path(), 4);
}

#[test]
fn checkpoint_of_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut wide = FusedOptimizer::new(Small::of([8, 10]), sgd()).unwrap();
    step(&mut wide);
    let progress = Progress::new(1).with_user_data(0.0);
    Checkpoint::at(folder.path())
        .save(&wide, &progress)
        .unwrap();
    let refused = assert_refused(folder.path());
    assert_matches!(refused, CheckpointError::Model { file, reason } if file.ends_with("model.bpk") && reason.contains("`weight` ([8, 10] in place of [8, 9])"));
}

#[test]
fn advice_for_checkpoint_of_another_model_works() {
    let device = Device::flex().autodiff();
    let layers = |classes: usize| -> Vec<Linear> {
        let layer = |outputs| LinearConfig::new(4, outputs).init(&device);
        vec![layer(4), layer(classes)]
    };
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let saved = layers(10);
    let first = weights(&saved[..1].to_vec());
    let training = FusedOptimizer::new(saved, sgd()).unwrap();
    checkpoint.save(&training, &Progress::new(1)).unwrap();
    for (model, is_partial) in [
        (layers(3), false),
        (layers(10)[..1].to_vec(), true),
        ([layers(10), layers(3)].concat(), true),
    ] {
        let mut fused = FusedOptimizer::new(copy(&model, || model.clone()), sgd()).unwrap();
        let refused = checkpoint.load::<()>(&mut fused).unwrap_err();
        assert_matches!(refused, CheckpointError::Model { .. });
        let mut record = checkpoint.model().unwrap().validate(false);
        if is_partial {
            record = record.allow_partial(true).allow_unused(true);
        }
        for advice in [
            "`Checkpoint::model`",
            "`validate(false)`",
            "`allow_partial(true)`",
            "`allow_unused(true)`",
        ] {
            assert_says(&refused, advice);
        }
        let classes = weights(&model).pop();
        let loaded = model.load_record(record);
        assert_eq!(weights(&loaded[..1].to_vec()), first);
        if loaded.len() == 2 {
            assert_eq!(weights(&loaded).pop(), classes, "of another shape");
        }
        FusedOptimizer::new(loaded, sgd()).unwrap();
    }
}

#[derive(Clone, Debug)]
enum Damage {
    /// One byte is changed.
    Flip(u8),
    /// The rest is cut off.
    Cut,
    /// Bytes are inserted.
    Insert(Vec<u8>),
    /// Bytes are copied from another place in the file.
    Copy(prop::sample::Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (1..=255u8).prop_map(Damage::Flip),
        Just(Damage::Cut),
        prop::collection::vec(any::<u8>(), 1..20).prop_map(Damage::Insert),
        (any::<prop::sample::Index>(), 1..40usize)
            .prop_map(|(from, length)| Damage::Copy(from, length)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn checkpoint_damaged_anywhere_is_refused_or_unchanged(
        file: prop::sample::Index,
        at: prop::sample::Index,
        damage in damage(),
    ) {
        thread_local! {
            static WHOLE: BTreeMap<PathBuf, Vec<u8>> = saved(4);
        }
        let mut damaged = WHOLE.with(Clone::clone);
        let name = file.get(&damaged.keys().collect::<Vec<_>>()).to_path_buf();
        let bytes = damaged.get_mut(&name).unwrap();
        if bytes.is_empty() {
            // The lock file, which is empty.
            bytes.extend(b"something");
        } else {
            let at = at.index(bytes.len());
            match damage {
                Damage::Flip(bits) => bytes[at] ^= bits,
                Damage::Cut => bytes.truncate(at),
                Damage::Insert(new) => drop(bytes.splice(at..at, new)),
                Damage::Copy(from, length) => {
                    let from = from.index(bytes.len());
                    let length = length.min(bytes.len() - from.max(at));
                    bytes.copy_within(from..from + length, at);
                }
            }
        }
        let folder = folder_of(&damaged);
        let mut training = after(2);
        match Checkpoint::at(folder.path()).load::<f64>(&mut training) {
            Ok(progress) => {
                prop_assert_eq!((progress.step, progress.user_data), (4, 4.0 / 3.0));
                prop_assert!(contents(&training) == contents(&after(4)));
            }
            Err(_) => prop_assert!(contents(&training) == contents(&after(2))),
        }
        // The training in memory is unchanged, too.
        save(folder.path(), 6);
        assert_is_after(folder.path(), 6);
    }
}
