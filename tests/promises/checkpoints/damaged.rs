//! What was not saved together is refused, whatever has become of it.

use proptest::prelude::*;

use super::*;

#[test]
fn parts_of_two_checkpoints_are_refused() {
    let (one, other) = (saved(4, false), saved(5, false));
    // Each file but the lock, and all but that.
    let names: Vec<_> = one
        .keys()
        .filter(|name| !name.ends_with("checkpoint.lock"))
        .collect();
    assert_eq!(names.len(), 5);
    for name in &names {
        for (whole, strange) in [(&one, &other), (&other, &one)] {
            let mut mixed = whole.clone();
            mixed.insert(name.to_path_buf(), strange[*name].clone());
            // Two trainings without a scheduler have the same record of it.
            if mixed == *whole {
                assert!(name.ends_with("scheduler.bpk"));
                continue;
            }
            let refused = assert_refused(folder_of(&mixed).path());
            let CheckpointError::OtherPart { file, .. } = &refused else {
                panic!("{refused}");
            };
            let is_manifest = name.ends_with("checkpoint.json");
            assert!(is_manifest || file.ends_with(name), "{refused}");
            assert!(refused.to_string().contains("of another checkpoint"));
        }
    }
}

#[test]
fn a_missing_part_is_named() {
    let whole = saved(4, true);
    for name in whole.keys().filter(|name| is_part(name)) {
        let mut lacking = whole.clone();
        lacking.remove(name);
        let refused = assert_refused(folder_of(&lacking).path());
        assert!(matches!(&refused, CheckpointError::Missing { file } if file.ends_with(name)));
        assert!(refused.to_string().contains("put it back"), "{refused}");
    }
}

#[test]
fn a_part_that_is_cut_off_is_named() {
    let whole = saved(4, false);
    for (name, bytes) in whole.iter().filter(|(name, _)| is_part(name)) {
        for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            let mut cut = whole.clone();
            cut.insert(name.clone(), bytes[..length].to_vec());
            let refused = assert_refused(folder_of(&cut).path());
            assert!(
                matches!(&refused, CheckpointError::OtherPart { file, .. } if file.ends_with(name))
            );
            assert!(refused.to_string().contains(&format!("({length} bytes")));
        }
    }
}

#[test]
fn a_folder_without_a_checkpoint_says_so() {
    let empty = tempfile::tempdir().unwrap();
    let nowhere = empty.path().join("nowhere");
    let mut without = saved(4, false);
    without.remove(Path::new("checkpoint.json"));
    let without = folder_of(&without);
    for folder in [empty.path(), &nowhere, without.path()] {
        let refused = assert_refused(folder);
        assert_eq!(
            refused,
            CheckpointError::NotThere {
                folder: folder.to_path_buf()
            }
        );
        assert!(!Checkpoint::at(folder).exists());
        assert!(Checkpoint::at(folder).model().is_err());
        assert!(Checkpoint::at(folder).progress::<f64>().is_err());
    }
}

#[test]
fn a_checkpoint_of_a_later_version_says_so() {
    let mut later = saved(4, false);
    let manifest = later.get_mut(Path::new("checkpoint.json")).unwrap();
    *manifest = br#"{"format": 2, "volumes": []}"#.to_vec();
    let folder = folder_of(&later);
    let refused = assert_refused(folder.path());
    assert!(matches!(
        refused,
        CheckpointError::OtherFormat {
            found: 2,
            known: 1,
            ..
        }
    ));
    // It is no reason to lose a training.
    save(folder.path(), 6);
    assert_is_after(folder.path(), 6);
}

#[test]
fn a_manifest_that_is_nonsense_is_named_and_replaced() {
    for (in_second, nonsense) in [(false, "nonsense"), (true, ""), (true, "{\"format\": 1}")] {
        let mut broken = saved(4, in_second);
        broken.insert("checkpoint.json".into(), nonsense.into());
        let folder = folder_of(&broken);
        let refused = assert_refused(folder.path());
        assert!(
            matches!(&refused, CheckpointError::Unreadable { file, .. } if file.ends_with("checkpoint.json"))
        );
        save(folder.path(), 6);
        assert_is_after(folder.path(), 6);
        assert_eq!(files(folder.path()).len(), 6);
    }
}

#[test]
fn a_plan_of_another_type_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 4);
    let mut training = after(2);
    let before = contents(&training);
    let refused = Checkpoint::at(folder.path()).load::<String>(&mut training);
    assert!(contents(&training) == before);
    let refused = refused.unwrap_err();
    assert!(matches!(
        refused,
        CheckpointError::Plan { done: "read", .. }
    ));
    assert!(refused.to_string().contains("String"), "{refused}");
}

/// Records that Burn reads, and that fit nothing.
#[test]
fn the_checkpoint_of_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut wide = FusedOptimizer::new(Small::of([8, 10]), sgd());
    step(&mut wide);
    let progress = Progress::new(1).with_plan(0.0);
    Checkpoint::at(folder.path())
        .save(&wide, &progress)
        .unwrap();
    let refused = assert_refused(folder.path());
    assert!(
        matches!(&refused, CheckpointError::Model { file, reason } if file.ends_with("model.bpk") && reason.contains("[8, 9]")),
        "{refused}"
    );
}

#[derive(Clone, Debug)]
enum Damage {
    /// A byte is another.
    Flip(u8),
    /// The rest is gone.
    Cut,
    /// Something has come in.
    Insert(Vec<u8>),
    /// Bytes from elsewhere in the file.
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
    fn whatever_is_damaged_is_refused_or_the_same(
        file: prop::sample::Index,
        at: prop::sample::Index,
        damage in damage(),
    ) {
        thread_local! {
            static WHOLE: BTreeMap<PathBuf, Vec<u8>> = saved(4, false);
        }
        let mut damaged = WHOLE.with(Clone::clone);
        let name = file.get(&damaged.keys().collect::<Vec<_>>()).to_path_buf();
        let bytes = damaged.get_mut(&name).unwrap();
        if bytes.is_empty() {
            // The lock, which says nothing.
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
                prop_assert_eq!((progress.step, progress.plan), (4, 4.0 / 3.0));
                prop_assert!(contents(&training) == contents(&after(4)));
            }
            Err(_) => prop_assert!(contents(&training) == contents(&after(2))),
        }
        // And it is no reason to lose a training.
        save(folder.path(), 6);
        assert_is_after(folder.path(), 6);
    }
}
