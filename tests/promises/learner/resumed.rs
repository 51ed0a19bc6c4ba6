//! A training that was killed resumes from its newest complete checkpoint.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use backburn::train::{FusedLearner, FusedModel, LaunchFused};
use burn::train::LearningResult;

use super::{ITEMS, Regression, Run};
use crate::common::*;

const FILES: [&str; 3] = ["model", "optim", "scheduler"];

/// Trains to `epochs` epochs in `folder`, from its newest checkpoint. The initial weights are random: equal results were loaded.
fn resume(run: Run, folder: &Path) -> LearningResult<Regression> {
    let training = run.training::<FusedModel<Regression>>(folder);
    let training = training.resume_from_newest(folder).unwrap();
    let learner = FusedLearner::new(Regression::init(), run.optimizer, run.scheduler);
    training.launch_fused(learner)
}

/// Returns a run that counts the items it reads.
fn counted(epochs: usize) -> (Run, Arc<AtomicUsize>) {
    let (mut run, count) = (Run::new(epochs), Arc::new(AtomicUsize::new(0)));
    let reads = count.clone();
    run.data.on_item = Arc::new(move |_| {
        reads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    (run, count)
}

fn files_of(folder: &Path, epoch: usize) -> [PathBuf; 3] {
    FILES.map(|name| folder.join(format!("checkpoint/{name}-{epoch}.bpk")))
}

#[test]
fn resume_skips_epoch_with_fewer_files() {
    let initial = Regression::init();
    let start = || copy(&initial, Regression::init);
    let folder = tempfile::tempdir().unwrap();
    let whole = Run::new(4).fused(start(), folder.path()).model;
    // The subsets of the files of epoch 3 that a kill can leave.
    for left in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        Run::new(3).fused(start(), folder.path());
        for (index, file) in files_of(folder.path(), 3).iter().enumerate() {
            if left & (1 << index) == 0 {
                fs::remove_file(file).unwrap();
            }
        }
        // Burn's temporary file, and files of another name.
        for name in ["model-4.bpk.1-0.tmp", "optim-04.bpk", "other-4.bpk"] {
            fs::write(folder.path().join("checkpoint").join(name), b"").unwrap();
        }
        let training = Run::new(4).training::<FusedModel<Regression>>(folder.path());
        drop(training.resume_from_newest(folder.path()).unwrap());
        let is_left = |file: &PathBuf| file.exists();
        let count = files_of(folder.path(), 3)
            .iter()
            .filter(|file| is_left(file))
            .count();
        assert_eq!(count, if left == 7 { 3 } else { 0 });
        let renamed = files_of(folder.path(), 3).map(|file| file.with_extension("bpk.incomplete"));
        let kept = renamed.iter().filter(|file| is_left(file)).count();
        assert_eq!(count + kept, (left as u32).count_ones() as usize);
        let (run, read) = counted(4);
        let resumed = resume(run, folder.path());
        assert_equal_weights(&whole, &resumed.model);
        let from = if left == 7 { 3 } else { 2 };
        assert_eq!(read.load(Ordering::Relaxed), (4 - from) * ITEMS);
        // A finished training is returned without further training.
        let (run, read) = counted(4);
        assert_equal_weights(&whole, &resume(run, folder.path()).model);
        assert_eq!(read.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn resume_names_file_that_is_not_renamed() {
    let folder = tempfile::tempdir().unwrap();
    Run::new(2).fused(Regression::init(), folder.path());
    let [model, optimizer, _] = files_of(folder.path(), 2);
    fs::remove_file(optimizer).unwrap();
    fs::create_dir(model.with_extension("bpk.incomplete")).unwrap();
    let training = Run::new(2).training::<FusedModel<Regression>>(folder.path());
    let error = training.resume_from_newest(folder.path()).err().unwrap();
    assert_matches!(&error, CheckpointError::Write { file, .. } if *file == model);
}

#[test]
fn resume_without_checkpoint_trains_from_start() {
    let folder = tempfile::tempdir().unwrap();
    let (run, read) = counted(2);
    let result = resume(run, &folder.path().join("new"));
    assert!(result.error.is_none());
    assert_eq!(read.load(Ordering::Relaxed), 2 * ITEMS);
}

#[test]
fn resume_without_checkpointers_panics() {
    let folder = tempfile::tempdir().unwrap();
    Run::new(1).fused(Regression::init(), folder.path());
    let loader = || {
        let loader = burn::data::dataloader::DataLoaderBuilder::new(super::PointBatcher);
        loader.batch_size(3).build(Run::new(0).data)
    };
    let training = burn::train::SupervisedTraining::new(folder.path(), loader(), loader());
    let training = training.with_application_logger(None);
    let training = training.resume_from_newest(folder.path()).unwrap();
    let run = Run::new(2);
    let learner = FusedLearner::new(Regression::init(), run.optimizer, run.scheduler);
    let launch = AssertUnwindSafe(|| training.launch_fused(learner));
    let panic = catch_unwind(launch).map(|result| result.model).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert_says(message, "with_default_checkpointers");
}

/// Burn replaces the ids of a model by those of a loaded record, and a hook would no longer be called.
#[test]
fn hook_by_id_after_load_of_other_ids_panics_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let trained = Run::new(1).fused(Regression::init(), folder.path()).model;
    type Group = fn(&Regression) -> ParamGroup;
    let by_id: Group = |model| ParamGroup::ids_from_module(model.output.clone());
    let by_path: Group = |_| ParamGroup::from_predicate("output");
    let but_ids: Group =
        |model| ParamGroup::all().exclude(ParamGroup::ids_from_module(model.output.clone()));
    for (group, is_resumed, is_refused) in [
        (by_id, true, true),
        (by_id, false, true),
        (but_ids, true, true),
        (but_ids, false, true),
        (by_path, true, false),
        (by_path, false, false),
    ] {
        count.store(0, Ordering::Relaxed);
        let (run, model, calls) = (Run::new(2), Regression::init(), count.clone());
        let training = run.training::<FusedModel<Regression>>(folder.path());
        let group = group(&model);
        let learner = FusedLearner::new(model, run.optimizer, run.scheduler);
        let mut learner = learner.with_hook(
            group,
            hook(move |_| {
                calls.fetch_add(1, Ordering::Relaxed);
                Answer::Use
            }),
        );
        let training = match is_resumed {
            true => training.checkpoint(1),
            false => training,
        };
        if !is_resumed {
            learner.load_model(trained.clone().into_record());
        }
        let launch = AssertUnwindSafe(|| training.launch_fused(learner));
        match catch_unwind(launch).map(|result| result.error.is_none()) {
            Ok(well) => assert!(well && !is_refused && count.load(Ordering::Relaxed) > 0),
            Err(panic) => {
                assert!(is_refused);
                let message = text_of(panic);
                for words in ["output.", "from_predicate"] {
                    assert_says(&message, words);
                }
            }
        }
    }
}

const FOLDER: &str = "BACKBURN_LEARNER_OF_A_CHILD";

#[test]
fn child_trains_and_saves() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let mut run = Run::new(2_000);
    run.data.on_item = Arc::new(|_| {
        std::thread::sleep(Duration::from_micros(200));
        Ok(())
    });
    resume(run, &PathBuf::from(folder));
}

#[test]
fn killed_process_resumes_with_same_bits() {
    let initial = Regression::init();
    let start = || copy(&initial, Regression::init);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Run::new(1).fused(start(), folder);
    let epochs = || {
        let names = fs::read_dir(folder.join("checkpoint")).unwrap();
        let number = |name: String| name.split(['-', '.']).nth(1)?.parse::<usize>().ok();
        let names = names.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        names.filter_map(number).max().unwrap()
    };
    for delay in [0, 3_000, 9_000] {
        let before = epochs();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["learner::resumed::child_trains_and_saves", "--exact"])
            .env(FOLDER, folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while epochs() < before + 2 {
            assert!(child.try_wait().unwrap().is_none(), "the child has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(delay));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let end = epochs() + 1;
    let resumed = resume(Run::new(end), folder);
    let other = tempfile::tempdir().unwrap();
    let whole = Run::new(end).fused(start(), other.path());
    assert_equal_weights(&whole.model, &resumed.model);
}

/// Burn deletes an only checkpoint before the next one is complete.
#[test]
fn resume_without_complete_later_epoch_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    Run::new(2).fused(Regression::init(), folder.path());
    for epoch in [1, 2] {
        fs::remove_file(&files_of(folder.path(), epoch)[1]).unwrap();
    }
    let training = Run::new(3).training::<FusedModel<Regression>>(folder.path());
    let error = training.resume_from_newest(folder.path()).err().unwrap();
    assert_matches!(error, CheckpointError::Incomplete { last: 2, .. });
    assert!(files_of(folder.path(), 2)[0].exists());
}

#[test]
fn learner_with_half_states_of_burn_is_refused_at_launch() {
    let folder = tempfile::tempdir().unwrap();
    let init = || {
        let Regression {
            input,
            norm,
            output,
        } = Regression::init();
        let [input, output] = [input, output].map(|it| cast(it, FloatDType::BF16).unwrap());
        Regression {
            input,
            norm,
            output,
        }
    };
    let launch = |epochs: usize, resumes: bool| {
        let run = Run::new(epochs);
        let training = run.training::<FusedModel<Regression>>(folder.path());
        let training = match resumes {
            true => training.resume_from_newest(folder.path()).unwrap(),
            false => training,
        };
        training.launch_fused(FusedLearner::new(init(), run.optimizer, run.scheduler))
    };
    launch(1, false);
    let launched = catch_unwind(AssertUnwindSafe(|| launch(2, true)));
    let message = text_of(launched.err().expect("it panics at launch"));
    assert_says(&message, "with an optimizer of `backburn::optim`");
}
